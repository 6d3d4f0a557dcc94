"""``python -m laurel`` is the `laurel` command."""

from laurel.cli import main

main()
