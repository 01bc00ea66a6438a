"""Commands for several hosts: `meshwright launch` and `meshwright slurm`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from trainer.commands.arguments import ConfigFile, Overrides, load
from trainer.errors import ConfigError
from trainer.paths import argument
from trainer.processes.place import PORT
from trainer.streams import outlast_readers

LAUNCHED = ("train", "eval", "generate")


def launch(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND ...", help="What to run there: train CONFIG, with all it takes.")
    ],
    *,
    hosts: Annotated[
        Path,
        typer.Option(
            "--hosts",
            metavar="FILE",
            help="One host a line: HOST, or HOST slots=N.",
            callback=argument,
        ),
    ],
    ssh: Annotated[
        str, typer.Option("--ssh", metavar="COMMAND", help="How to reach a host, such as 'ssh -p 2222'.")
    ] = "ssh",
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=1, max=65535, help="Of the first host, for the others to find it.")
    ] = PORT,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME", help="Also pass this variable on; NAME may end in *.")
    ] = None,
    restarts: Annotated[
        int, typer.Option("--restarts", metavar="N", min=0, help="Start again, so often at most, when a process dies.")
    ] = 0,
) -> None:
    """Run a command on several hosts, through ssh.

    Each has this folder and this Python under the same names. A host with slots=N gets N processes.

    Example: meshwright launch --hosts hosts.txt -- train configs/quickstart.yaml
    """
    if command[0] not in LAUNCHED:
        raise ConfigError(f"launch runs {', '.join(LAUNCHED)}, and not {command[0]!r}; write -- train CONFIG")
    from trainer.processes.hosts import read_hosts
    from trainer.processes.remote import remote_commands
    from trainer.processes.supervisor import supervise

    found = read_hosts(hosts)
    outlast_readers()
    say = partial(typer.secho, fg=typer.colors.RED, err=True)
    if code := supervise(lambda start: remote_commands(command, found, ssh, port, env or ()), restarts, say):
        raise typer.Exit(code)


def slurm(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", min=1, help="How many.")],
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", metavar="G", min=1, help="A process for each.")],
    save_seconds: Annotated[
        int, typer.Option("--save-seconds", metavar="S", min=1, help="What a step and a checkpoint take at most.")
    ] = 300,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write it there instead of showing it.",
            callback=argument,
        ),
    ] = None,
) -> None:
    """Write a script for sbatch that trains a config.

    Example: meshwright slurm configs/llama3-8b.yaml --nodes 2 --gpus-per-node 8
    """
    loaded = load(config, overrides)
    from trainer.output_file import check_output, write_output
    from trainer.processes.elastic import fit
    from trainer.processes.slurm_script import slurm_script

    if out is not None:
        check_output("--out", out, (".sh", ".sbatch", ".slurm"))
    fit(loaded, nodes * gpus_per_node).resolve(nodes * gpus_per_node)
    text = slurm_script(
        config,
        overrides or (),
        name=loaded.run.name,
        nodes=nodes,
        gpus=gpus_per_node,
        seconds=save_seconds,
    )
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_output("--out", out, text)
