"""The deployment files of docs/serving.md, held against the programs that read them, where these are installed."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from server.helpers_server import Served, slow, until

GUIDE = Path(__file__).parents[2] / "docs" / "serving.md"


def block(kind: str) -> str:
    """The one piece of the guide in some language."""
    [text] = re.findall(rf"```{kind}\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.S)
    return str(text)


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


@needs("systemd-analyze")
def test_the_unit_is_understood(tmp_path: Path) -> None:
    unit = tmp_path / "dapd.service"
    unit.write_text(block("ini").replace("/opt/dapd/bin/dapd", sys.executable), encoding="utf-8")
    ran = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_options_that_it_names_are_there() -> None:
    known = (GUIDE.parent / "commands.md").read_text(encoding="utf-8")
    for kind in ("ini", "Dockerfile"):
        options = re.findall(r"--[a-z-]+", next(line for line in block(kind).splitlines() if "serve" in line[:45]))
        assert options
        assert all(f"`{option}`" in known for option in options)


@pytest.fixture
def proxied(lm, tmp_path: Path) -> Iterator[str]:
    """A slow server behind nginx, with the guide's lines but for the ports and the certificate."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Served(slow(lm, 0.05)) as served:
        own = served.base.rpartition(":")[2]
        lines = block("nginx").replace(":8000", f":{own}")
        lines = re.sub(r"\n *ssl_certificate.*", "", lines).replace("listen 443 ssl", f"listen 127.0.0.1:{port}")
        conf = tmp_path / "nginx.conf"
        top = f"daemon off; pid {tmp_path}/pid; error_log stderr; events {{}}\n"
        conf.write_text(f"{top}http {{ access_log off;\n{lines}\n}}\n", encoding="utf-8")
        nginx = subprocess.Popen(["nginx", "-p", str(tmp_path), "-c", str(conf)], stderr=subprocess.PIPE, text=True)
        try:
            until(lambda: answers(port) or nginx.poll() is not None, 60)
            assert nginx.poll() is None, nginx.stderr and nginx.stderr.read()
            yield f"http://127.0.0.1:{port}"
        finally:
            nginx.terminate()
            nginx.wait(20)


def answers(port: int) -> bool:
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) == 0


@needs("nginx")
def test_a_stream_comes_through_nginx_piece_by_piece(proxied: str) -> None:
    body = {"model": "random:tiny-llada", "prompt": "hello", "max_tokens": 24, "strategy": "original", "stream": True}
    times = []
    with httpx.stream("POST", f"{proxied}/v1/completions", json={**body, "stream_mode": "denoise"}, timeout=60) as got:
        assert got.status_code == 200
        for line in got.iter_lines():
            if line.startswith("data: "):
                times.append(time.monotonic())
    assert len(times) > 24
    # Twenty-four passes of at least 50 ms each: what is held back until the end would come at once.
    assert times[-1] - times[0] > 0.6
    assert httpx.get(f"{proxied}/ready").status_code == 200
