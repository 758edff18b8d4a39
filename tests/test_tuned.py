"""How a tuned kernel is launched: through Triton's tuning once for a key, then directly, with the same arguments."""

from types import SimpleNamespace

from common import tuned

import pytest


class Kernel:
    """As much of an autotuned kernel as a launch needs; it writes down what is asked of it."""

    arg_names = ["x", "M", "FAST", "BM"]
    best_config = SimpleNamespace(kwargs={"BM": 128})

    def __init__(self):
        self.asked, self.launched = [], []

    def __getitem__(self, grid):
        def call(*args, **constants):
            self.asked.append((grid({"BM": 128}), args, constants))
            return Compiled(self)

        return call


class Compiled:
    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, size):
        return lambda *args: self.kernel.launched.append((size, args))


def test_it_is_tuned_once_for_a_key():
    kernel = Kernel()
    for x in "abc":
        tuned.launch(kernel, (1000,), lambda config: 1000 // config["BM"], None, x, 1000, FAST=True, launch_pdl=True)
    assert kernel.asked == [((7,), ("a", 1000), {"FAST": True, "launch_pdl": True})]
    assert kernel.launched == [((7, 1, 1), ("b", 1000, True, 128)), ((7, 1, 1), ("c", 1000, True, 128))]
    tuned.launch(kernel, (2000,), lambda config: 15, None, "d", 2000, FAST=True)
    assert len(kernel.asked) == 2


@pytest.mark.parametrize(
    ("tiles", "most", "programs"),
    [(1536, 132, 128), (129, 132, 129), (132, 132, 132), (133, 132, 67), (1, 132, 1), (5, None, 5)],
)
def test_the_grid_takes_no_more_rounds_than_it_must(tiles, most, programs):
    kernel = Kernel()
    tuned.launch(kernel, (), lambda config: tiles, most, "x", 1)
    assert kernel.asked[0][0] == (programs,)
