"""Why a layer did not come from the Hugging Face Hub, in one line with the way out.

The `kernels` library's own errors often name another cause: without a network, the publisher's trust.
"""

import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import constants

REPO = "kernels-community/liger-kernels"
PACKAGE = "uv run --with liger-kernel 04_liger_mlp.py --source package"
NETWORK = (ConnectionError, TimeoutError, socket.gaierror, ssl.SSLError)


class Unavailable(Exception):
    """The layer could not be loaded: the reason, and the way out.

    unreachable: the Hub did not answer. no_build: it has none for this machine.
    """

    def __init__(self, reason: str, way_out: str = PACKAGE, unreachable: bool = False, no_build: bool = False) -> None:
        super().__init__(f"{reason}; {way_out}")
        self.reason, self.unreachable, self.no_build = reason, unreachable, no_build


def local_folder() -> Path | None:
    """The folder that LOCAL_KERNELS names for this layer, if it does. It is `repo=path`, several joined by colons."""
    entries = (entry.partition("=") for entry in os.environ.get("LOCAL_KERNELS", "").split(":"))
    return next((Path(path) for repo, _, path in entries if repo == REPO), None)


def explain(error: Exception) -> Unavailable:
    """What `get_kernel` raised, as the line that a reader can act on."""
    text, folder, status = str(error), local_folder(), _status(error)
    first = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    if "Invalid LOCAL_KERNELS" in text:
        return Unavailable(f"LOCAL_KERNELS is {os.environ['LOCAL_KERNELS']}", f"make it {REPO}=FOLDER")
    if folder and not folder.is_dir():
        return Unavailable(f"LOCAL_KERNELS names a folder that does not exist, {folder}", "correct or unset it")
    if "Cannot find a build variant" in text:
        where = f"the folder {folder} (LOCAL_KERNELS)" if folder else f"{REPO} on the Hub"
        return Unavailable(f"{where} has no build for this machine and its torch", no_build=True)
    if folder:
        return Unavailable(f"LOCAL_KERNELS names {folder}, which does not load ({first})", "correct or unset it")
    if constants.HF_HUB_OFFLINE:
        reason = f"HF_HUB_OFFLINE is set and kernels finds no version 1 of {REPO} in the cache"
        return Unavailable(reason, f"unset it, or {PACKAGE}", unreachable=True)
    if "not from a trusted publisher" in text:
        return Unavailable(f"the Hub does not list the publisher of {REPO} as trusted, so its code is not run")
    if any("Illegal header value" in str(cause) for cause in _causes(error)):  # kernels 0.17.2 ends its user agent in ;
        reason = "kernels cannot ask the Hub with telemetry off (HF_HUB_DISABLE_TELEMETRY, DO_NOT_TRACK)"
        return Unavailable(reason, f"set HF_HUB_USER_AGENT_ORIGIN=lesson too, or {PACKAGE}", unreachable=True)
    if status == 429:
        reason = "the Hub limits requests from here (HTTP 429)"
        return Unavailable(reason, f"wait, or hf auth login, or {PACKAGE}", unreachable=True)
    if status in (401, 403):
        return Unavailable(
            f"the Hub refused this login (HTTP {status})", f"unset HF_TOKEN or hf auth login, or {PACKAGE}"
        )
    if status:
        reason = f"the Hub answered HTTP {status} for {REPO}"
        return Unavailable(reason, f"try later, or {PACKAGE}", unreachable=status >= 500)
    if any(isinstance(cause, NETWORK) or type(cause).__module__.startswith("http") for cause in _causes(error)):
        reason = f"{constants.ENDPOINT} cannot be reached"
        return Unavailable(reason, f"check network and proxy, or {PACKAGE}", unreachable=True)
    return Unavailable(f"{REPO} does not load ({first})")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _status(error: Exception) -> int | None:
    answers = (getattr(cause, "response", None) for cause in _causes(error))
    return next((answer.status_code for answer in answers if answer is not None), None)
