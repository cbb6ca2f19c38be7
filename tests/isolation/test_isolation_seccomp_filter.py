"""The seccomp filter, run here as the kernel runs it, for every machine that it is for."""

from __future__ import annotations

import errno
import operator
import signal
import socket
import struct

import pytest
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from gate.errors import RunError
from gate.isolation.seccomp_filter import (
    ANSWERING_REFUSED,
    ARCHITECTURES,
    COUNTED_OPTIONS,
    OF_ITSELF_ALONE,
    REFUSED,
    SIGNALS,
    answering_filter,
    seccomp_filter,
)

ALLOWED = 0x7FFF0000
KILLED = 0x80000000
OTHER_ARCHITECTURE = 0x40000003  # i386
NAMES = sorted(ARCHITECTURES)
HOLDS = {0x15: operator.eq, 0x35: operator.ge, 0x45: operator.and_}


def answer(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """What the kernel would do: a tiny machine with one register, which only ever jumps ahead."""
    words = (*arguments, *(0,) * (6 - len(arguments)))
    data = struct.pack("<IIQ6Q", number, architecture, 0, *words)
    steps = list(struct.iter_unpack("=HBBI", program))
    register = at = 0
    while True:
        code, then_skip, else_skip, operand = steps[at]
        at += 1
        if code == 0x20:
            (register,) = struct.unpack_from("<I", data, operand)
        elif code == 0x06:
            return int(operand)
        else:
            at += then_skip if HOLDS[code](register, operand) else else_skip


def failing(number: int) -> int:
    return 0x00050000 | number


def on(name: str, call: str | int, *arguments: int, network: bool = False) -> int:
    machine = ARCHITECTURES[name]
    number = machine.calls[call] if isinstance(call, str) else call
    program = seccomp_filter(name, network=network)
    return answer(program, machine.architecture, number, *arguments)


@pytest.mark.parametrize("name", NAMES)
def test_nobody_asks_what_is_in_the_page_cache(name: str) -> None:
    nowait, high_priority = 0x8, 0x1
    for flags in (nowait, nowait | high_priority, nowait | 1 << 32):
        assert on(name, "preadv2", 3, 0, 0, 0, 0, flags) == failing(errno.EOPNOTSUPP)
    for flags in (0, high_priority):
        assert on(name, "preadv2", 3, 0, 0, 0, 0, flags) == ALLOWED


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("call", ["socket", "socketpair"])
def test_only_local_sockets_can_be_made(name: str, call: str) -> None:
    assert on(name, call, int(socket.AF_UNIX)) == ALLOWED
    for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, 17, 38, 40):
        assert on(name, call, int(family)) == failing(errno.EACCES), family
        # the kernel looks at 32 bits of the argument, and so must the filter
        assert on(name, call, int(family) | 1 << 32) == failing(errno.EACCES), family
        assert on(name, call, int(family), network=True) == ALLOWED, family


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("network", [False, True])
def test_ways_into_others_are_refused_with_any_network(name: str, *, network: bool) -> None:
    answers = {call: on(name, call, network=network) for call in REFUSED}
    assert answers == {call: failing(number) for call, number in REFUSED.items()}


@each_row("name", NAMES)
@each_row(
    "bit", [0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000]
)
def test_no_process_is_made_in_a_namespace_of_its_own(name: str, bit: int) -> None:
    assert on(name, "clone", bit | signal.SIGCHLD) == failing(errno.EPERM)
    assert on(name, "clone", 0x003D0F00) == ALLOWED  # a thread, as the C library makes it
    assert on(name, "clone", signal.SIGCHLD) == ALLOWED


@each_row("name", NAMES)
@each_row("more", [0, signal.SIGCHLD, 0x003D0F00, 0x4100, 1 << 32])
def test_no_process_is_made_with_a_descriptor_of_it(name: str, more: int) -> None:
    """Its inode would come from a count of the machine's; who lacks it knows a number."""
    assert on(name, "clone", 0x1000 | more) == failing(errno.ENOSYS)
    assert on(name, "clone", 0x1000 | more, network=True) == failing(errno.ENOSYS)
    assert on(name, "clone", 0x1000 | 0x10000000 | more) == failing(errno.EPERM)
    assert on(name, "clone", more) == ALLOWED


@given(st.sampled_from(NAMES), st.integers(0, 300), st.integers(0, 300), st.sampled_from((0, 1)))
def test_no_option_of_a_socket_tells_a_number_of_the_machine(
    name: str, level: int, option: int, high: int
) -> None:
    for call, refused in COUNTED_OPTIONS.items():
        for asked, at in ((option, level), *((one, 1) for one in refused)):
            counted = at == 1 and asked in refused
            # the kernel looks at 32 bits of both
            found = on(name, call, 3, at | high << 32, asked | high << 32)
            assert found == (failing(errno.ENOPROTOOPT) if counted else ALLOWED)
        assert on(name, call, 3, 6, refused[0]) == ALLOWED


def while_answering(name: str, call: str, first: int = 0, *, pid: int = 4711) -> int:
    machine = ARCHITECTURES[name]
    return answer(answering_filter(name, pid), machine.architecture, machine.calls[call], first)


@pytest.mark.parametrize("name", NAMES)
def test_who_answers_a_question_starts_no_process_and_opens_no_socket(name: str) -> None:
    there = {call: n for call, n in ANSWERING_REFUSED.items() if call in ARCHITECTURES[name].calls}
    answers = {call: while_answering(name, call, int(socket.AF_UNIX)) for call in there}
    assert answers == {call: failing(number) for call, number in there.items()}
    absent = ANSWERING_REFUSED.keys() - there.keys()
    assert absent <= ({"fork", "vfork"} if name == "aarch64" else set())


@pytest.mark.parametrize("name", NAMES)
def test_who_answers_a_question_may_have_threads_alone(name: str) -> None:
    assert while_answering(name, "clone", 0x003D0F00) == ALLOWED
    assert while_answering(name, "clone", signal.SIGCHLD) == failing(errno.EPERM)
    assert while_answering(name, "clone", 0x00008000 | signal.SIGCHLD) == failing(errno.EPERM)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("call", OF_ITSELF_ALONE)
@given(pid=st.integers(2, 2**22), other=st.integers(0, 2**32 - 1))
def test_who_answers_a_question_reaches_no_process_but_itself(
    name: str, call: str, pid: int, other: int
) -> None:
    assert while_answering(name, call, pid, pid=pid) == ALLOWED
    itself = other == pid or (other == 0 and call not in SIGNALS)
    expected = ALLOWED if itself else failing(errno.EPERM)
    assert while_answering(name, call, other, pid=pid) == expected
    # of kill, 0 is a whole group and -1 all that may be signalled
    assert while_answering(name, "kill", 2**32 - 1, pid=pid) == failing(errno.EPERM)


@pytest.mark.parametrize("name", NAMES)
def test_calls_of_another_architecture_end_the_process(name: str) -> None:
    for program in (seccomp_filter(name, network=True), answering_filter(name, 4711)):
        assert answer(program, OTHER_ARCHITECTURE, 1) == KILLED


def test_the_second_table_of_x86_is_not_there() -> None:
    assert on("x86_64", 0x40000000 | 41, int(socket.AF_INET)) == failing(errno.ENOSYS)


@given(st.sampled_from(NAMES), st.integers(0, 2**30 - 1), st.integers(0, 2**64 - 1), st.booleans())
def test_every_other_call_is_allowed(name: str, number: int, first: int, network: bool) -> None:  # noqa: FBT001 - drawn
    known = set(ARCHITECTURES[name].calls.values())
    assert number in known or on(name, number, first, network=network) == ALLOWED


def test_an_unknown_machine_is_named() -> None:
    with pytest.raises(RunError, match="for a machine of type 'riscv64'") as caught:
        seccomp_filter("riscv64", network=False)
    assert caught.value.hint == "Train on x86_64 or aarch64, or set isolation.mode to none."
