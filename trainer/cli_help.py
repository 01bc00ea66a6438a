"""How `meshwright COMMAND --help` looks: what to type and what each word means, in plain text."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class Command(TyperCommand):
    """Arguments are shown by their metavar; options with their default, and without their type."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        params = [param for param in self.get_params(ctx) if param.name != "help"]
        required = [_name(param) for param in params if param.required]
        optional = [param for param in params if not param.required]
        arguments = [f"[{_name(param)}]" for param in optional if param.param_type_name == "argument"]
        has_options = len(optional) > len(arguments) or not params
        return required + arguments + ["[OPTIONS]"] * has_options

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for kind in ("argument", "option"):
            rows = [(_name(param), _help(param)) for param in self.get_params(ctx) if param.param_type_name == kind]
            if rows:
                with formatter.section(f"{kind.capitalize()}s"):
                    formatter.write_dl(rows)


def _name(param: Any) -> str:
    if param.param_type_name == "argument":
        return param.metavar
    return " ".join(filter(None, [", ".join(sorted(param.opts, key=len)), param.metavar]))


def _help(param: Any) -> str:
    has_default = isinstance(param.default, int | float) and not isinstance(param.default, bool)
    return f"{param.help} [default: {param.default}]" if has_default else param.help
