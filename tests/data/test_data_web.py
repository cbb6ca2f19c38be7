"""A file of the web: whole, cut, refused, replaced, too large, and fetched once by two gates."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from data_bench import DataBench
from file_server import (
    Answer,
    Behaviour,
    FileServer,
    cut_after,
    of_unknown_length,
    status,
    with_bytes,
)
from pydantic import ValidationError

from gate.errors import DataError, ExitCode
from gate.settings.data import DataSource

CONTENT = os.urandom(300_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer(CONTENT) as running:
        yield running


def source(server: FileServer, **more: object) -> dict[str, object]:
    return {"url": server.url, "sha256": DIGEST, **more}


def refused(call: Callable[[], object]) -> DataError:
    with pytest.raises(DataError) as caught:
        call()
    assert caught.value.exit_code is ExitCode.ERROR
    assert caught.value.hint
    return caught.value


def test_a_file_is_fetched_once_and_all_may_read_it(bench: DataBench, server: FileServer) -> None:
    found = bench.one(source(server))
    assert found.source is not None
    assert found.source.read_bytes() == CONTENT
    assert stat.S_IMODE(found.source.stat().st_mode) == 0o444
    assert (found.name, found.place, found.origin) == ("mini.bin", "", server.url)
    assert bench.one(source(server)) == found
    assert len(server.asked) == 1
    assert bench.left_on_the_way() == []
    assert bench.shown.steps[0] == "fetching mini.bin"
    assert bench.shown.steps[1].startswith("mini.bin: fetched 300 kB in ")


@pytest.mark.parametrize(
    "before",
    [
        [cut_after(100_000), cut_after(50_000)],
        [status(503), status(500)],
        [status(429, Retry_After="1")],
        [cut_after(0), cut_after(0), cut_after(0)],
        [cut_after(100_000), status(503), cut_after(3), status(503)],
    ],
)
def test_what_is_cut_or_busy_is_asked_again(
    bench: DataBench, server: FileServer, before: list[Behaviour]
) -> None:
    server.behaviours.extend(before)
    found = bench.one(source(server))
    assert found.source is not None
    assert found.source.read_bytes() == CONTENT
    assert len(server.asked) == len(before) + 1


def test_a_cut_file_goes_on_where_it_was_cut(bench: DataBench, server: FileServer) -> None:
    server.behaviours.append(cut_after(100_000))
    bench.one(source(server))
    assert server.asked[1]["range"] == "bytes=100000-"
    assert server.asked[1]["if-range"] == '"one"'
    assert "mini.bin: the answer was cut off; trying again" in bench.shown.steps


def test_a_server_without_ranges_gives_it_again(bench: DataBench, server: FileServer) -> None:
    server.ranges = False
    server.behaviours.append(cut_after(100_000))
    assert bench.one(source(server)).source is not None


def test_what_came_is_kept_for_the_next_call(bench: DataBench, server: FileServer) -> None:
    server.behaviours.extend([cut_after(100_000), *[status(503)] * 5])
    error = refused(lambda: bench.one(source(server)))
    assert error.message.startswith("data: mini.bin: 127.0.0.1:")
    assert error.message.endswith(" answered 503, also when asked 5 times")
    assert list((bench.cache / "objects").iterdir()) == []
    server.behaviours.clear()
    assert bench.one(source(server)).source is not None
    assert server.asked[-1]["range"] == "bytes=100000-"


def test_two_versions_are_not_joined(bench: DataBench, server: FileServer) -> None:
    server.content = bytes(300_000)
    server.behaviours.append(cut_after(100_000))
    server.behaviours.extend([status(503)] * 5)
    refused(lambda: bench.one(source(server)))
    server.content, server.tag = CONTENT, '"two"'
    server.behaviours.clear()
    found = bench.one(source(server))
    assert found.source is not None
    assert found.source.read_bytes() == CONTENT


def test_versions_that_were_joined_without_a_tag_are_fetched_anew(
    bench: DataBench, server: FileServer
) -> None:
    server.tag = 'W/"weak"'
    server.behaviours.extend([lambda answer: answer.serve(bytes(300_000), most=100_000)])
    found = bench.one(source(server))
    assert found.source is not None
    assert found.source.read_bytes() == CONTENT
    assert [row.get("range") for row in server.asked] == [None, "bytes=100000-", None]


def test_another_digest_is_an_error_and_nothing_is_kept(
    bench: DataBench, server: FileServer
) -> None:
    server.content = CONTENT[:-1] + b"\0"
    error = refused(lambda: bench.one(source(server)))
    assert error.message == f"data: mini.bin: {server.url} has another SHA-256 than declared"
    assert error.details[0] == f"declared {DIGEST}"
    assert list((bench.cache / "objects").iterdir()) == []
    assert all(path.stat().st_size == 0 for path in bench.cache.rglob("part"))


def test_another_part_than_asked_for_is_not_taken(bench: DataBench, server: FileServer) -> None:
    def other(answer: Answer) -> None:
        answer.begin(206, 3, Content_Range="bytes 5-7/300000")
        answer.wfile.write(CONTENT[5:8])

    server.behaviours.extend([cut_after(100_000), other])
    found = bench.one(source(server))
    assert found.source is not None
    assert found.source.read_bytes() == CONTENT


def test_a_length_that_is_not_told_is_no_fault(bench: DataBench, server: FileServer) -> None:
    server.behaviours.append(of_unknown_length(CONTENT))
    assert bench.one(source(server)).source is not None


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (404, "Check the address in repro-gate.yml with `curl -fLO ADDRESS`."),
        (403, "The gate's account needs access: put a login for the host into its ~/.netrc."),
    ],
)
def test_a_refusal_is_not_asked_again(
    bench: DataBench, server: FileServer, number: int, hint: str
) -> None:
    server.behaviours.append(status(number))
    error = refused(lambda: bench.one(source(server)))
    assert error.message.endswith(f" answered {number}")
    assert error.hint == hint
    assert len(server.asked) == 1


@pytest.mark.parametrize("told", [True, False])
def test_more_than_the_cache_may_hold_is_refused(
    bench: DataBench, server: FileServer, *, told: bool
) -> None:
    server.behaviours.append(with_bytes(CONTENT) if told else of_unknown_length(CONTENT))
    error = refused(lambda: bench.one(source(server), max_bytes=200_000))
    assert error.message == (
        "data: mini.bin has 300,000 bytes; the cache may hold 200,000"
        if told
        else "data: mini.bin: the download exceeds 200,000 bytes"
    )
    assert error.hint == "Raise fetch.max_bytes in repro-gate.yml, or declare less data."


def test_a_server_that_takes_too_long_is_one_error(bench: DataBench, server: FileServer) -> None:
    times = iter(range(0, 10_000_000, 30))
    bench.policy = replace(bench.policy, monotonic=lambda: float(next(times)))
    error = refused(lambda: bench.one(source(server), timeout_seconds=45.0))
    assert error.message == "data: mini.bin: not fetched within 45 s"
    assert "fetch.timeout_seconds" in error.hint


def test_a_redirect_is_followed_but_not_out_of_https(bench: DataBench, server: FileServer) -> None:
    server.behaviours.append(status(302, Location="/elsewhere"))
    assert bench.one(source(server)).source is not None
    server.behaviours.append(status(301, Location="http://example.org/x"))
    error = refused(lambda: bench.one({**source(server), "sha256": "0" * 64}))
    assert "redirects to 'http://example.org/x', which is not https" in error.message
    server.behaviours.extend([status(302, Location="/again")] * 6)
    error = refused(lambda: bench.one({**source(server), "sha256": "0" * 64}))
    assert error.message.endswith("redirects more than 5 times")
    server.behaviours.append(status(302, Location="https://["))
    error = refused(lambda: bench.one({**source(server), "sha256": "0" * 64}))
    assert error.message.endswith("redirects to 'https://[', which is not an address")


def test_two_gates_at_once_fetch_once(
    bench: DataBench, other_bench: DataBench, server: FileServer
) -> None:
    both = threading.Barrier(2)
    sources = []

    def fetch(one: DataBench) -> None:
        both.wait()
        sources.append(one.one(source(server)).source)

    threads = [threading.Thread(target=fetch, args=(one,)) for one in (bench, other_bench)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.asked) == 1
    assert sources[0] == sources[1]


def test_what_the_cache_holds_is_read_again_and_fetched_anew_when_damaged(
    bench: DataBench, server: FileServer
) -> None:
    found = bench.one(source(server)).source
    assert found is not None
    found.chmod(0o644)
    found.write_bytes(b"damaged")
    assert bench.one(source(server, verify="cached")).source == found
    assert len(server.asked) == 1
    assert bench.one(source(server)).source == found
    assert found.read_bytes() == CONTENT
    assert (
        "mini.bin: what the cache held of it was damaged, and is fetched again" in bench.shown.steps
    )


@pytest.mark.parametrize("port", ["99999", "x", "-1"])
def test_a_port_that_is_none_is_refused(bench: DataBench, server: FileServer, port: str) -> None:
    server.behaviours.append(status(302, Location=f"http://127.0.0.1:{port}/x"))
    error = refused(lambda: bench.one(source(server)))
    assert "which is not an address" in error.message
    with pytest.raises(ValidationError, match="Port"):
        DataSource(url=f"https://example.org:{port}/x", sha256=DIGEST)
