"""Every fault a trace can have, made at random places of a good one: what is whole keeps its figures."""

import gzip
import json
import random
import re
import resource
import sys
from collections.abc import Callable

from common import reading, work
from common.events import TraceError

import pytest
from conftest import H200, one_line, run

GOOD = gzip.decompress((H200 / "03_simple_mlp" / "64x128x768x3072_bf16_warm_eager.json.gz").read_bytes())
# The same trace as another writer lays it out: on one line, without kineto's separators.
ONE_LINE = json.dumps(json.loads(GOOD)).encode()
STEPS = ("ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4")


def table(path) -> dict:
    """(kernel, op) -> its times, in the order of the steps."""
    return {(row.name, row.op): sorted(row.times) for row in work.per_step(reading.read(path)).rows}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "good.json"
    path.write_bytes(GOOD)
    return table(path)


def somewhere(text: bytes, pattern: bytes, rng: random.Random) -> re.Match:
    begin = text.index(b'"traceEvents"')
    return rng.choice([match for match in re.finditer(pattern, text) if match.start() > begin])


def inside_a_name(inserted: bytes) -> Callable[[bytes, random.Random], bytes]:
    def fault(text: bytes, rng: random.Random) -> bytes:
        at = somewhere(text, rb'"name": ?"(?!Profiler|cu)[^"]*?(?=[^"]{3}")', rng).end()
        return text[:at] + inserted + text[at:]

    return fault


def as_a_value(value: bytes) -> Callable[[bytes, random.Random], bytes]:
    def fault(text: bytes, rng: random.Random) -> bytes:
        match = somewhere(text, rb'(?<="bytes": )\d+|(?<="queued": )\d+|(?<="stream": )\d+', rng)
        return text[: match.start()] + value + text[match.end() :]

    return fault


MENDED = {  # nothing but the one name changes
    "unescaped backslash": inside_a_name(b"C:\\Users\\me"),
    "unescaped quote": inside_a_name(b'a "b" c'),
    "control character": inside_a_name(b"a\nb\x01c"),
    "bad UTF-8": inside_a_name(b"\xff\xfe"),
    "inf": as_a_value(b"inf"),
    "-nan": as_a_value(b"-nan"),
    "N/A": as_a_value(b"N/A"),
    "NaN": as_a_value(b"NaN"),
    "Infinity": as_a_value(b"-Infinity"),
}


@pytest.mark.parametrize("text", [GOOD, ONE_LINE], ids=["kineto", "one line"])
@pytest.mark.parametrize("fault", MENDED.values(), ids=MENDED)
def test_broken_text_is_mended_and_every_figure_stays(tmp_path, whole, text, fault):
    for seed in range(6):
        path = tmp_path / f"{seed}.json"
        path.write_bytes(fault(text, random.Random(seed)))
        trace = reading.read(path)
        assert all("mended" in one.what and re.match(r"byte \d+$", one.where) for one in trace.set_aside)
        found = sorted(time for times in table(path).values() for time in times)
        assert found == sorted(time for times in whole.values() for time in times)


@pytest.mark.parametrize("text", [GOOD, ONE_LINE], ids=["kineto", "one line"])
@pytest.mark.parametrize("packed", [False, True], ids=["json", "gz"])
def test_a_file_that_breaks_off_keeps_what_came_before(tmp_path, whole, text, packed):
    for seed in range(8):
        rng = random.Random(seed)
        path = tmp_path / f"{seed}.json{'.gz' * packed}"
        data = gzip.compress(text) if packed else text
        path.write_bytes(data[: rng.randrange(len(data) // 2, len(data) - 30)])
        try:
            trace = reading.read(path)
        except TraceError as error:
            assert packed and str(path) in str(error)  # too little of it came out
            continue
        assert trace.set_aside
        kernels = [time for times in table(path).values() for time in times]
        assert not set(kernels) - {time for times in whole.values() for time in times}


def changed(change: Callable[[list[dict]], object]) -> bytes:
    trace = json.loads(GOOD)
    change(trace["traceEvents"])
    return json.dumps(trace).encode()


def kernel(rows: list[dict]) -> dict:
    return next(row for row in rows if row.get("cat") == "kernel")


SET_ASIDE = {
    "negative duration": (lambda rows: kernel(rows).update(dur=-1), "impossible time"),
    "absurd duration": (lambda rows: kernel(rows).update(dur=18446744073709551), "impossible time"),
    "no number": (lambda rows: kernel(rows).update(ts="soon"), "broken"),
    "twice": (lambda rows: rows.append(dict(kernel(rows))), "twice"),
    "no launch": (lambda rows: kernel(rows)["args"].update(correlation=999999), None),
    "a list as its id": (lambda rows: kernel(rows)["args"].update(correlation=[1]), "broken"),
}


@pytest.mark.parametrize(("change", "what"), SET_ASIDE.values(), ids=SET_ASIDE)
def test_an_event_that_cannot_be_true_is_counted_and_named(tmp_path, whole, change, what):
    path = tmp_path / "t.json"
    path.write_bytes(changed(change))
    trace = reading.read(path)
    assert [one for one in trace.set_aside if what and what in one.what] or (
        what is None and work.per_step(trace).unlaunched
    )
    missing = sum(len(times) for times in whole.values()) - sum(len(times) for times in table(path).values())
    assert missing == (0 if what == "twice" else 1)


def test_what_looks_odd_and_is_right_is_read(tmp_path, whole):
    rows = json.loads(GOOD)["traceEvents"]
    as_text = [row | {"ts": str(row["ts"]), "dur": str(row["dur"])} if "dur" in row else row for row in rows]
    files = {
        "a bare list": json.dumps(rows),
        "a bare list without its end": json.dumps(rows)[:-1],
        "a trailing comma": json.dumps({"traceEvents": rows})[:-2] + ",]}",
        "empty events": json.dumps({"traceEvents": [{}, *rows, {}]}),
        "times as text": json.dumps({"traceEvents": as_text}),
        "a key twice": json.dumps({"traceEvents": rows}).replace('"ph": "X"', '"ph": "Q", "ph": "X"'),
    }
    for name, text in files.items():
        path = tmp_path / f"{name}.json.tmp"
        path.write_text(text)
        assert table(path) == whole, name


def test_overlapping_kernels_on_one_stream_count_once_as_busy(tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(
        changed(lambda rows: [row.update(dur=row["dur"] + 5) for row in rows if row.get("cat") == "kernel"])
    )
    steps = work.per_step(reading.read(path))
    assert steps.busy_us < sum(sum(row.times) for row in steps.rows) / 3


DEEP = b'{"traceEvents": [{"ph": "X", "args": {"Input Dims": ' + b"[" * 300_000 + b"]" * 300_000 + b"}}]}"
BOMBS = {
    "spaces": lambda: gzip.compress(b" " * (600 << 20), 1),
    "spaces in the list": lambda: gzip.compress(b'{"traceEvents": [' + b" " * (600 << 20), 1),
    "depth": lambda: DEEP,
    "depth of the list": lambda: b"[" * 1_000_000 + b"]" * 1_000_000,
}


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process are POSIX")
@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_bomb_ends_in_one_line_within_two_gigabytes(tmp_path, bomb):
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(bomb())
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))  # noqa: E731
    done = run("-m", "common", "show", path, preexec_fn=limit)
    assert done.returncode == 1 and "bomb.json.gz: " in one_line(done.stderr)


def test_pieces_give_what_one_go_gives(tmp_path, whole, monkeypatch):
    path = tmp_path / "t.json"
    path.write_bytes(GOOD)
    for size in (700, 5000, 1 << 30):
        monkeypatch.setattr(reading, "PIECE", size)
        trace = reading.read(path)
        assert table(path) == whole and not trace.set_aside and trace.lesson["name"] == "03_simple_mlp"
