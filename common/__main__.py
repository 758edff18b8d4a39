"""Ask trace files of torch.profiler: uv run -m common VERB TRACE."""

import argparse
import os
import sys
from pathlib import Path

from common import cli

H200 = "traces/recorded/h200/03_simple_mlp/64x128x768x3072_bf16_warm"
EXAMPLES = {
    "show": f"uv run -m common show {H200}_eager.json.gz --guess 3",
    "compare": f"uv run -m common compare {H200}_eager.json.gz {H200}_compile.json.gz",
    "decode": "uv run -m common decode ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nn",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="uv run -m common", description="Ask trace files of torch.profiler.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    show = _verb(verbs, "show", "the kernel table of one step, against the GPU's limits")
    show.add_argument("traces", nargs=1, type=Path, metavar="TRACE", help="a .json or .json.gz file")
    show.add_argument("--guess", type=cli.guess, metavar="GUESS", help="3, or gemm=1,copy=2")
    compare = _verb(verbs, "compare", "what became of each kernel of the first trace in the others")
    compare.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="two or more .json or .json.gz files")
    decode = _verb(verbs, "decode", "the parts of a kernel's name in words, each documented or inferred")
    decode.add_argument(
        "names", nargs="+", metavar="NAME|TRACE", help="a name; two names, for what differs; or the names in traces"
    )
    args = parser.parse_args()
    if args.verb == "compare" and not 2 <= len(args.traces) <= 26:
        compare.error("give it two traces, or up to 26")
    if args.verb == "decode":
        traces = [Path(name) for name in args.names if name.endswith((".json", ".json.gz"))]
        args.traces = traces
        if traces and len(traces) < len(args.names):
            decode.error("give it names or traces (.json, .json.gz), not both")
    _answer(args)


def _answer(args: argparse.Namespace) -> None:
    import json  # the readers take longer to import than --help may take

    from common import events, records, report, verbs

    try:
        traces = [report.read(path) for path in args.traces]
        out = report.console()
        if args.verb == "decode":
            _decode(args, traces)
        elif args.json:
            found = (records.show if args.verb == "show" else records.compared)(args.traces, traces)
            print(json.dumps(found, indent=1))
        elif args.verb == "show":
            report.show(out, traces[0], args.full_names, args.guess)
        else:
            verbs.compared(out, args.traces, traces, args.full_names)
        sys.stdout.flush()
    except events.TraceError as error:
        report.error(str(error))
        sys.exit(1)
    except OSError as error:  # `| head` has read what it wanted; a full disk is worth a word
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            report.error(f"cannot write the output: {error.strerror or error}")
            sys.exit(1)


def _decode(args: argparse.Namespace, traces: list) -> None:
    import json
    from collections import Counter

    from common import decode, events, records, report, verbs

    calls = Counter(event.name for trace in traces for event in trace.of(events.GPU))
    found = [decode.decode(events.printable(name)) for name in (calls if args.traces else args.names)]
    if args.json:
        print(json.dumps(records.decoded(found), indent=1))
        return
    out = report.console()
    verbs.decoded(out, found, args.full_names)
    if args.traces:
        verbs.coverage(out, calls, found)
    elif len(found) == 2:
        verbs.differing(out, *found)


def _verb(verbs: argparse._SubParsersAction, name: str, does: str) -> argparse.ArgumentParser:
    verb = verbs.add_parser(name, help=does, description=does, epilog=f"example: {EXAMPLES[name]}", allow_abbrev=False)
    verb.add_argument("--full-names", "--full_names", action="store_true", help="print kernel names in full")
    verb.add_argument("--json", action="store_true", help="the same as JSON")
    return verb


if __name__ == "__main__":
    main()
