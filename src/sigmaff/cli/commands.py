"""All commands of the program with their options. ``main`` imports this when one of them runs."""

import typer

from sigmaff.cli.adopt import adopt, export, trust
from sigmaff.cli.audit import audit
from sigmaff.cli.check import check, info
from sigmaff.cli.evaluate import calibrate, evaluate, predict, report
from sigmaff.cli.guard import guard, guard_options
from sigmaff.cli.init import init, schema
from sigmaff.cli.learn import learn, select
from sigmaff.cli.md import md, md_options
from sigmaff.cli.options import config_command, reading_command
from sigmaff.cli.relax import relax, relax_options
from sigmaff.cli.train import compare, demo, ensemble, methods, train
from sigmaff.cli.watch import watch

app = typer.Typer()

app.command(cls=reading_command("format", "energy_unit", "length_unit", "energy_key", "forces_key"))(check)
app.command(cls=reading_command())(init)
app.command()(train)
app.command()(watch)
app.command(cls=reading_command())(adopt)
app.command()(trust)
app.command()(export)
app.command(cls=reading_command())(evaluate)
app.command(cls=reading_command())(calibrate)
app.command(cls=reading_command("format", "length_unit"))(predict)
app.command(cls=reading_command())(report)
app.command()(info)
app.command(cls=config_command(md_options))(md)
app.command(cls=config_command(guard_options))(guard)
app.command(cls=config_command(relax_options))(relax)
app.command()(learn)
app.command(cls=reading_command("format"))(select)
app.command()(methods)
app.command()(schema)
app.command()(compare)
app.command()(ensemble)
app.command(cls=reading_command())(audit)
app.command()(demo)
