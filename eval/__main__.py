"""python -m eval COMMAND: questions asked of model directories.

A command is a function; tyro makes its flags and its help of its signature and docstring. A room is
imported when one of its commands is given.
"""

from __future__ import annotations

import errno
import inspect
import sys
from difflib import get_close_matches
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

if __name__ == "__main__":
    # The working directory may have folders or files of our names, or a library's: it comes last.
    if not getattr(sys.flags, "safe_path", False):
        sys.path.append(sys.path.pop(0))
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.modules.pop("eval", None)


from arch.errors import is_out_of_memory
from arch.kernels.process import discard_output, prepare_streams  # before torch
from eval.messages import ArgumentError, RequestError, nearest, say

if TYPE_CHECKING:  # libraries are loaded where an interruption is one line
    from collections.abc import Callable, Container, Iterator, Sequence

    from tyro import _errors as refusals

    from eval.commands.result import Result

COMMANDS = {
    "loss": "eval.commands.language:loss",
    "generate": "eval.commands.language:generate",
    "invert": "eval.commands.invert:invert",
    "capture": "eval.commands.capture:capture",
    "recover": "eval.commands.recover:recover_file",
    "solvers": "eval.commands.lists:list_solvers",
    "bits": "eval.commands.bits:bits",
    "probe": "eval.commands.probe:probe",
    "geometry": "eval.commands.probe:geometry",
    "lens": "eval.commands.lens:lens",
    "lenses": "eval.commands.lists:list_lenses",
    "summary": "eval.commands.views:summary",
    "compare": "eval.commands.views:compare",
    "report": "eval.commands.views:report",
    "explore": "eval.explore.command:explore",
}
"""The function of each command."""
EXAMPLES = """\
  python -m eval loss runs/* --corpus data/tinystories
  python -m eval invert runs/flat@0 runs/flat --out results/flat
  python -m eval compare runs results
  python -m eval report results/flat --out page.html
"""
FORMATS = Literal["table", "json"]
PLACES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors of files that another place mends."""
ADVICE = {**dict.fromkeys(PLACES, "; free space, or give another place"),
          errno.EISDIR: "; give a file", errno.ENOTDIR: "; give a place that is in a directory",
          errno.EEXIST: "; give a directory, or another name"}  # fmt: skip
"""What to do about errors of files."""
SYNONYMS = {"data": "corpus", "dataset": "corpus", "method": "solvers", "methods": "solvers",
            "output": "out", "output-dir": "out", "prompt": "text", "prompts": "text",
            "sentence": "text", "n": "count", "num-samples": "count", "samples": "count",
            "bs": "batch", "batch-size": "batch", "num-prompts": "count"}  # fmt: skip
"""Flags by the names that other tools give them."""
VIEWS = ("summary", "compare", "report")
"""Commands that keep no rows."""


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; 0 when it answered, 2 when it could not, 130 when it was interrupted."""
    words = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    prepare_streams()
    try:
        try:
            _answer(words)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # a reader such as `head` has closed the pipe
        discard_output(sys.stdout)
    except KeyboardInterrupt:
        say(f"interrupted; {_kept(words)}")
        return 130
    except Exception as error:
        if is_out_of_memory(error):
            smaller = "free some, or ask for less at once: a smaller model, --batch, --length"
            say(f"error: out of memory; {_kept(words)}; {smaller}")
            return 2
        from arch import ModelError  # it needs torch, which --help does without
        from tokenizer import CorpusError

        if not isinstance(error, ModelError | CorpusError | RequestError | OSError):
            raise
        say(f"error: {_describe(error, words)}")
        return 2
    return 0


def _answer(words: Sequence[str]) -> None:
    """Prints the help, or the result of a command."""
    name, *rest = words
    if name in ("-h", "--help"):
        print("usage: python -m eval COMMAND ... [--help]\n")
        for command in COMMANDS:
            print(f"  {command:10}{(command_function(command).__doc__ or '').splitlines()[0]}")
        print(f"\nexamples:\n{EXAMPLES}", end="")
        return
    result, form = run_command(name, rest)
    print(result.json() if form == "json" else str(result))


def _kept(words: Sequence[str]) -> str:
    """What is kept of a command that ended before its answer, and how it goes on."""
    out = ""
    for word, value in zip(words, [*words[1:], ""], strict=True):
        flag, equals, written = word.partition("=")
        if flag == "--out":
            out = written if equals else value
    if words[0] == "capture":
        return "files that are written stay; delete them, or give another --out"
    if words[0] in VIEWS or not out:
        return "nothing is kept"
    if not Path(out).is_dir():
        return f"nothing is in {out} yet; the same command begins anew"
    return f"the rows so far are kept in {out}; the same command goes on"


def command_function(name: str) -> Callable[..., Result]:
    """The function of a command.

    Raises:
        RequestError: there is no such command.
    """
    if name not in COMMANDS:
        raise RequestError(f"{name}: there is no such command; {nearest(name, COMMANDS)}")
    module, _, function = COMMANDS[name].partition(":")
    return getattr(import_module(module), function)


def run_command(name: str, words: list[str]) -> tuple[Result, str]:
    """Runs a command with words of a command line: its result, and the form it is to be shown in.

    Raises:
        RequestError: a flag or a value that there is not, or what the command raises.
        SystemExit: the help was asked for and is printed.
    """
    import docstring_parser
    import tyro
    from tyro import _errors as refusals  # what tyro has of what it refuses; pinned

    from eval.commands.flags import READERS, TRUST_HELP, flag_name, reader_of

    function = command_function(name)
    parameters = list(inspect.signature(function).parameters.values())
    documented = docstring_parser.parse(inspect.getdoc(function) or "")
    texts = {parameter.arg_name: parameter.description or "" for parameter in documented.params}
    has_format = name == "explore" or any(p.name == "format" for p in parameters)
    more: dict[str, tuple[Any, Any, str]] = {}
    if not has_format:
        more["format"] = FORMATS, "table", "json: the rows, to standard output"
    if getattr(function, "opens_models", False):
        more["trust_code"] = bool, False, TRUST_HELP
    for flag, (kind, default, text) in more.items():
        parameters.append(inspect.Parameter(flag, inspect.Parameter.KEYWORD_ONLY,
                                            default=default, annotation=kind))  # fmt: skip
        texts[flag] = text
    _refuse_twice(parameters, words)
    hints = {p.name: Annotated[(p.annotation, _flag(p, texts[p.name]))] for p in parameters}

    def call(**options: Any) -> tuple[Result, str]:
        form = "table" if has_format else options.pop("format")
        if not options.get("trust_code"):
            options.pop("trust_code", None)
        result = function(**options)
        if options.get("out", "") is None and any("key" in row for row in result.rows):
            say("rows are not kept: --out DIR keeps them")
        return result, form

    call.__doc__, call.__annotations__ = documented.description, hints
    setattr(call, "__signature__", inspect.Signature(parameters))  # noqa: B010

    def refuse(event: refusals.ParseErrorEvent) -> None:
        optional = [
            parameter for parameter in parameters if parameter.default is not parameter.empty
        ]
        raise RequestError(refusal(event, [flag_name(parameter.name) for parameter in optional]))

    single = {
        flag_name(p.name)
        for p in parameters
        if reader_of(p.annotation).nargs == 1 and p.annotation is not bool
    }
    program = f"python -m eval {name}"
    words = [*_joined(words, single)]
    with refusals.on_parse_error(refuse):
        return tyro.cli(call, args=words, prog=program, registry=READERS)


def _refuse_twice(parameters: Sequence[inspect.Parameter], words: Sequence[str]) -> None:
    """Refuses a flag that takes several values and is given again, which would replace them."""
    from eval.commands.flags import flag_name, reader_of

    given = [word.partition("=")[0].replace("_", "-") for word in words]
    for parameter in parameters:
        flag = flag_name(parameter.name)
        if (
            flag != "--plugin"
            and given.count(flag) > 1
            and reader_of(parameter.annotation).nargs == "*"
        ):
            raise RequestError(f"{flag}: given twice; give all its values together")


def _flag(parameter: inspect.Parameter, text: str) -> Any:
    """What tyro is told of a parameter: its name and its help; no default where that is nothing."""
    import tyro

    silent = parameter.default in (None, (), inspect.Parameter.empty)
    return tyro.conf.arg(
        name=parameter.name.strip("_") if parameter.name.endswith("_") else None,
        help=" ".join(text.split()),
        help_behavior_hint="" if silent else None,
    )


def _joined(words: Sequence[str], single: Container[str]) -> Iterator[str]:
    """The words, with `--sort -NAME` as `--sort=-NAME`: a value may begin with a dash."""
    left = iter(words)
    for word in left:
        if word in single and (value := next(left, None)) is not None:
            dashed = value.startswith("-") and not value.startswith("--") and value != "-h"
            yield from [f"{word}={value}"] if dashed else [word, value]
        else:
            yield word


def refusal(event: refusals.ParseErrorEvent, flags: list[str]) -> str:
    """One line of what tyro refuses: the flag, the value, what is allowed."""
    from tyro import _errors as refusals

    argument = getattr(event, "argument", None)
    name = argument.display_name() if argument else ""
    if isinstance(event, refusals.UnrecognizedArgs):
        word = event.tokens[0].partition("=")[0]
        if word.startswith("-"):
            return f"{word}: there is no such flag; {_meant(word, flags)}"
        return f"{word}: one word too many; `{event.prog} --help` shows what is expected"
    if isinstance(event, refusals.InvalidChoice):
        return f"{name}: {event.value!r} is not one of {', '.join(event.choices)}"
    if isinstance(event, refusals.BadValue):
        return f"{name}: give a value"
    if isinstance(event, refusals.MissingArgs):
        missing = ", ".join(argument.arg.display_name() for argument in event.missing_arguments)
        return f"{missing}: is missing; `{event.prog} --help` says what it is"
    return f"{name}: {getattr(event, 'message', 'cannot be read')}"


def _meant(word: str, flags: list[str]) -> str:
    """The flag that other tools name so, or that has the word in it, or that is near."""
    name = word.strip("-").replace("_", "-")
    holds = [flag for flag in flags if name in flag.strip("-").split("-")]
    meant = [flag for flag in (f"--{SYNONYMS.get(name)}", *holds) if flag in flags]
    meant += [f"--{alike}" for alike in get_close_matches(name, [f.strip("-") for f in flags], 1)]
    return f"did you mean {meant[0]}?" if meant else "see --help"


def _describe(error: Exception, words: Sequence[str]) -> str:
    """An error in one line; where a file cannot be written, with the flag, the file and the fix."""
    if isinstance(error, ArgumentError):  # of a command's function, or of one that it calls
        from eval.commands.flags import flag_name

        own = error.argument in inspect.signature(command_function(words[0])).parameters
        return error.named(flag_name(error.argument)) if own else str(error)
    if not (isinstance(error, OSError) and error.filename):
        return str(error)
    file, pairs = str(error.filename), pairwise(words)
    flags = (f"{flag} " for flag, value in pairs if value == file and flag.startswith("--"))
    advice = ADVICE.get(error.errno or 0, "")
    return f"{next(flags, '')}{file}: {error.strerror}{advice}"


if __name__ == "__main__":
    sys.exit(main())
