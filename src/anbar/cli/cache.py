"""`anbar cache`: what is cached, and for whom."""

from typing import Annotated

import typer

from anbar.apps.purge import Target, purge, scope_of
from anbar.cli.options import ConfigOption, SetOption, load_options

app = typer.Typer(add_completion=False)


@app.callback(no_args_is_help=True)
def cache() -> None:
    """Remove what is cached."""


@app.command("purge")
def purge_scope(
    file: ConfigOption = None,
    settings: SetOption = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="NAME", help="Of this tenant, which is in no group.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="NAME", help="Of all tenants of this group.")
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option(
            "--scope",
            metavar="NAME",
            help="Of the tenant or the group of this name, also if it is not in the file any more.",
        ),
    ] = None,
    default: Annotated[bool, typer.Option("--default", help="Of requests without a known tenant.")] = False,
) -> None:
    """Make all that is cached of a tenant unusable at once, and remove it from the store.

    Deletes the data key, without which nobody can read what is stored encrypted; changes the salt, so that
    what engines have in HBM and in host memory is not found any more, and makes room; and removes what is in
    the store. Needs the state directory and the store of the routers and engines. May be repeated. Exit
    status 1 when not all could be removed, as of a store that was away: what is left is named, key and salt
    are done then. Exit status 2 when there is no such scope; then nothing was done.
    """
    config = load_options(file, settings).config
    found_scope = scope_of(config.tenants, Target(tenant, group, scope, default))
    assert config.tenants is not None, "scope_of sees to it"
    whose = ", ".join(config.tenants.members(found_scope)) or found_scope or "requests without a known tenant"
    typer.echo(f"purging what is cached of {whose}")
    found = purge(config, found_scope)
    for text in found.done:
        typer.echo(f"  {text}")
    for text in found.failed:
        typer.echo(f"  NOT DONE: {text}", err=True)
    if found.failed:
        raise typer.Exit(1)
