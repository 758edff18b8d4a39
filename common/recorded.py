"""Which recorded GPU trace to show beside a run."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
RECORDED = ROOT / "traces" / "recorded"


def nearest(lesson: str, asked: str) -> tuple[Path, str] | None:
    """The path and config of the lesson's trace that is most like the config `asked`; None where none was recorded."""
    found = {path.name.removesuffix(".json.gz"): path for path in sorted(RECORDED.glob(f"*/{lesson}/*.json.gz"))}
    if not found:
        return None
    config = max(found, key=lambda config: _likeness(config, asked))
    return found[config], config


def _likeness(config: str, asked: str) -> tuple[bool, ...]:
    """What two configs share, the weightiest first."""
    shape, dtype, warmth, variant, *schedule = config.split("_")
    shape_, dtype_, warmth_, variant_, *schedule_ = asked.split("_")
    return (
        variant == variant_,
        variant.split("-")[0] == variant_.split("-")[0],  # compile of any mode, liger of any source
        shape.count("x") == shape_.count("x"),  # --batched
        schedule == schedule_,
        warmth == warmth_,
        shape == shape_,
        dtype == dtype_,
    )
