"""`planner COMMAND …`: dispatch, exit statuses, and nothing heavy before a command is chosen.

Exit status: 0 ok · 1 verification failed, a claim refused, plans differ, or no accelerator found · 2 usage ·
3 input invalid · 4 cannot fit in memory · 5 no plan in time.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points

from planner.cli.commands.completion import complete, typed
from planner.cli.parser import Parser
from planner.errors import PlannerError
from planner.garbage import collect_seldom
from planner.terminal import Shown, plain, takes_colour
from planner.version import __version__

__all__ = ["commands", "main"]

# Command → (module, one line of help).  Modules are imported when their command runs.
COMMANDS = {
    "search": ("planner.cli.commands.search", "search the best parallel strategy for a model"),
    "verify": (
        "planner.cli.commands.verify",
        "execute a plan on virtual devices and compare the results with the whole model",
    ),
    "inspect": ("planner.cli.commands.inspect", "show what the importer understood of a model"),
    "hardware": (
        "planner.cli.commands.hardware",
        "list hardware profiles, show one with its sources, or name that of this machine",
    ),
    "checkpoint": (
        "planner.cli.commands.checkpoint",
        "move a checkpoint to another plan, another number of devices or another framework",
    ),
    "resume": (
        "planner.cli.commands.resume",
        "search a plan for the devices that are left of a training, and say where its state comes from",
    ),
    "cache": ("planner.cli.commands.cache", "show or clear the cached plans"),
    "build": ("planner.cli.commands.build", "build a model graph of any size, without weights"),
    "accuracy": ("planner.cli.commands.accuracy", "measure the cost model against published measurements"),
    "calibrate": ("planner.cli.commands.calibrate", "measure this machine and write its hardware profile"),
    "evaluate": ("planner.cli.commands.evaluate", "price a known parallel configuration, or a plan, on a model"),
    "explain": (
        "planner.cli.commands.explain",
        "say what the choices of a plan cost, what alternatives would cost, and what limits the plan",
    ),
    "emit": ("planner.cli.commands.emit", "write a plan as the files that a runtime loads"),
    "report": ("planner.cli.commands.report", "show a plan: in the terminal, as a page, or as a trace of its step"),
    "run": ("planner.cli.commands.run", "execute a plan with PyTorch, one process per device"),
    "diff": ("planner.cli.commands.diff", "compare two plans: show what differs, and what each difference costs"),
    "plot": ("planner.cli.commands.plot", "draw plans for papers and slides: scaling, memory, causes, timelines"),
    "read": ("planner.cli.commands.read", "turn another system's strategy into a plan.json"),
    "completion": (
        "planner.cli.commands.completion",
        "print the script that completes commands and options in bash, zsh or fish",
    ),
    "check": ("planner.cli.commands.check", "check a solver's choice and bound with its certificate"),
    "solve": ("planner.cli.commands.solve", "solve a saved problem and prove how good the answer is"),
}

# Of the commands that api and torch offer; other packages' say whose they are.
_OFFERED = {
    "export": "write a PyTorch module, or a configuration of Hugging Face, as an ONNX file without weights",
    "serve": "answer requests for plans over HTTP, and show a web page",
    "worker": "compute the jobs of a service, beside `planner serve`",
    "store": "check, back up, migrate and copy what a service keeps",
    "keys": "make, list and revoke the keys of a service",
    "submit": "search on a service, to which the model is sent without its weights",
}


def commands() -> dict[str, tuple[str, str]]:
    """The commands above and those that other packages offer (`planner serve`)."""
    found = dict(COMMANDS)
    for entry in entry_points(group="planner.commands"):
        package = entry.value.partition(".")[0]
        found.setdefault(entry.name, (entry.value, _OFFERED.get(entry.name, f"offered by {package}")))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    collect_seldom()
    # Whatever is printed may have names in it that a stranger chose.
    out, error = (Shown(stream, coloured=takes_colour(stream)) for stream in (sys.stdout, sys.stderr))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            return _main(argv)
        except KeyboardInterrupt:  # while the command was still being loaded
            print("planner: interrupted", file=sys.stderr)
            return 130


def _main(argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = Parser(prog="planner", description="Plan how a model trains or serves on many devices.")
    parser.add_argument("--version", action="version", version=f"planner {__version__}")
    group = parser.add_subparsers(dest="command", metavar="COMMAND")
    completing = "_ARGCOMPLETE" in os.environ
    words = typed() if completing else arguments
    chosen = next((a for a in words if not a.startswith("-")), None)
    for name, (module, line) in commands().items():
        sub = group.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")
        if name == chosen:
            loaded = importlib.import_module(module)
            loaded.configure(sub)
            sub.set_defaults(run=loaded.run)
    if completing:
        complete(parser)
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        with _progress(options):
            status = int(options.run(options))
        sys.stdout.flush()
        return status
    except PlannerError as e:
        print(plain(f"planner {options.command}: error: {e}", "\n"), file=sys.stderr)
        return e.exit_status
    except BrokenPipeError:
        # The reader has gone (`| head`); silence the flush at exit as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as e:
        if e.errno != errno.ENOSPC:
            raise
        print(f"planner {options.command}: error: the result cannot be written: {e.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 3
    except KeyboardInterrupt:
        print(f"planner {options.command}: interrupted", file=sys.stderr)
        return 130


def _progress(options: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    """The line that says how far the command is, where somebody looks at it."""
    from planner.status import shown

    piped = getattr(options, "json", False) and not sys.stdout.isatty()
    silent = getattr(options, "quiet", False) or getattr(options, "events", None) == "-"
    first = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun starts
    return shown(options.command, wanted=options.command in COMMANDS and first and not piped and not silent)


if __name__ == "__main__":
    raise SystemExit(main())
