"""`meshwright launch`: a command in processes of other hosts, each through an ssh of its own.

What is to be run goes through ssh's standard input, so that nobody reads a variable's value in a list of processes.
That input stays open for as long as this program lives: a line is the name of a signal to pass on, and its end ends the
process there, whatever becomes of ssh.
"""

from __future__ import annotations

import fnmatch
import os
import shlex
from collections.abc import Mapping, Sequence

from trainer.processes.children import Command
from trainer.processes.hosts import Host
from trainer.processes.own_command import own_command
from trainer.processes.place import COORDINATOR, INDEX_ON_HOST, ON_HOST, PROCESS, PROCESSES

PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "JAX_*", "XLA_*", "NCCL_*", "MESHWRIGHT_*", "GLIBC_TUNABLES")
"""Variables of this process that the others get, where they are set; --env adds to them."""

_SCRIPT = """\
cd {folder} || exit 1
{exports}
exec 3<&0
{command} </dev/null &
process=$!
( while read -r name <&3; do kill -s "$name" $process; done; kill -s KILL $process ) >/dev/null 2>&1 &
listener=$!
wait $process
code=$?
while kill -s 0 $process 2>/dev/null; do wait $process; code=$?; done
kill $listener 2>/dev/null
exit $code
"""


def remote_commands(
    args: Sequence[str], hosts: Sequence[Host], ssh: str, port: int, names: Sequence[str] = ()
) -> list[Command]:
    """`meshwright ARGS` as so many processes as the hosts have slots, in this folder and by this Python of each host.

    Args:
        ssh: the command, with its options.
        port: of the first host, where process 0 answers the others.
        names: variables to pass on, besides `PASSED_ON`.
    """
    coordinator = f"{hosts[0].name.rpartition('@')[2]}:{port}"
    count = sum(host.slots for host in hosts)
    places = [(host, index) for host in hosts for index in range(host.slots)]
    commands = []
    for process, (host, index) in enumerate(places):
        place = {
            COORDINATOR: coordinator,
            PROCESSES: str(count),
            PROCESS: str(process),
            ON_HOST: str(host.slots),
            INDEX_ON_HOST: str(index),
        }
        script = _SCRIPT.format(
            folder=shlex.quote(os.getcwd()),
            exports="\n".join(
                f"export {name}={shlex.quote(value)}"
                for name, value in {**_passed_on(os.environ, names), **place}.items()
            ),
            command=shlex.join(own_command("trainer", *args)),
        )
        commands.append(Command((*shlex.split(ssh), host.name, "sh", "-s"), script=script))
    return commands


def _passed_on(environment: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    patterns = (*PASSED_ON, *names)
    return {
        name: value
        for name, value in environment.items()
        if name.isidentifier() and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }
