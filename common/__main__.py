"""Ask a trace file: uv run -m common show TRACE."""

import argparse
import sys
from pathlib import Path

from common import events, report, work


def main() -> None:
    parser = argparse.ArgumentParser(prog="uv run -m common", description="Ask a trace file of the torch profiler.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    show = verbs.add_parser(
        "show",
        help="the kernel table of one step",
        epilog="example: uv run -m common show traces/recorded/h200/02_linear/1024x32x64_bf16_warm_eager.json.gz",
    )
    show.add_argument("trace", type=Path, metavar="TRACE", help="a .json or .json.gz file")
    show.add_argument("--full-names", "--full_names", action="store_true", help="kernel names in full")
    args = parser.parse_args()
    try:
        report.kernel_table(report.console(), work.per_step(events.read(args.trace)), args.full_names)
    except events.TraceError as error:
        report.error(str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
