"""`python -m drsrobust`: the command `drsrobust`, where its folder is on no path."""

from importlib.metadata import entry_points

if __name__ == "__main__":
    (command,) = entry_points(group="console_scripts", name="drsrobust")
    command.load()(prog_name="drsrobust")
