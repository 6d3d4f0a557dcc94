"""Write MATH as train.parquet and test.parquet: from the Hugging Face hub, or from a local copy of the data set."""

from __future__ import annotations

import argparse
import sys

from laurel.data.preprocess import math_dataset
from laurel.types import LaurelError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--local_save_dir", "--local_dir", default="~/data/math", metavar="DIR", help="where to write")
    parser.add_argument(
        "--local_dataset_path",
        metavar="DIR",
        help="folder with the data set's parquet, jsonl or save_to_disk files; default: the hub",
    )
    arguments = parser.parse_args()
    try:
        paths = math_dataset.write(arguments.local_save_dir, arguments.local_dataset_path)
    except LaurelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for path in paths:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
