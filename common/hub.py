"""Why a layer did not come from the Hugging Face Hub, in one line with the way out.

The `kernels` library's own errors often name another cause: without a network, the publisher's trust.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import constants

REPO = "kernels-community/liger-kernels"
PACKAGE = "uv run --with liger-kernel 04_liger_mlp.py --source package"


class Unavailable(Exception):
    """The layer could not be loaded; the text says why in one line.

    unreachable: the Hub did not answer. no_build: it has none for this machine.
    """

    def __init__(self, text: str, unreachable: bool = False, no_build: bool = False) -> None:
        super().__init__(text)
        self.unreachable, self.no_build = unreachable, no_build


def local_folder() -> Path | None:
    """The folder that LOCAL_KERNELS names for this layer, if it does. It is `repo=path`, several joined by colons."""
    entries = (entry.partition("=") for entry in os.environ.get("LOCAL_KERNELS", "").split(":"))
    return next((Path(path) for repo, _, path in entries if repo == REPO), None)


def explain(error: Exception) -> Unavailable:
    """What `get_kernel` raised, as the line that a reader can act on."""
    text, folder, status = str(error), local_folder(), _status(error)
    first = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    if "Invalid LOCAL_KERNELS" in text:
        return Unavailable(f"LOCAL_KERNELS is not of the form {REPO}=FOLDER")
    if folder and not folder.is_dir():
        return Unavailable(f"LOCAL_KERNELS names a folder that does not exist: {folder}")
    if "Cannot find a build variant" in text:
        where = f"the folder {folder} (LOCAL_KERNELS)" if folder else f"{REPO} on the Hub"
        return Unavailable(f"{where} has no build for this machine, its torch and its GPU", no_build=True)
    if folder:
        return Unavailable(f"LOCAL_KERNELS: {folder} does not load as a kernel ({first})")
    if constants.HF_HUB_OFFLINE:
        return Unavailable(f"HF_HUB_OFFLINE is set and {REPO} is not in the cache; unset it, or {PACKAGE}", True)
    if "not from a trusted publisher" in text:
        return Unavailable(f"the Hub does not list the publisher of {REPO} as trusted, so it is not run; {PACKAGE}")
    if status == 429:
        return Unavailable(f"the Hub limits requests from here (HTTP 429); wait, or hf auth login, or {PACKAGE}", True)
    if status:
        return Unavailable(f"the Hub answered HTTP {status} for {REPO}; try later, or {PACKAGE}", status >= 500)
    if any(isinstance(e, OSError) or type(e).__module__.startswith(("http", "requests")) for e in _causes(error)):
        return Unavailable(f"{constants.ENDPOINT} cannot be reached; check network and proxy, or {PACKAGE}", True)
    return Unavailable(f"{REPO} does not load ({first}); {PACKAGE}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _status(error: Exception) -> int | None:
    answers = (getattr(cause, "response", None) for cause in _causes(error))
    return next((answer.status_code for answer in answers if answer is not None), None)
