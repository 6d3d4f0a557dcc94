"""Write GSM8K as train.parquet and test.parquet: from the Hugging Face hub, or from a local copy of the data set."""

from __future__ import annotations

import argparse
import sys

from laurel.data.preprocess import gsm8k
from laurel.types import LaurelError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--local_save_dir", "--local_dir", default="~/data/gsm8k", metavar="DIR", help="where to write")
    parser.add_argument(
        "--local_dataset_path",
        metavar="DIR",
        help="folder with the data set's parquet, jsonl or save_to_disk files; default: the hub",
    )
    arguments = parser.parse_args()
    try:
        paths = gsm8k.write(arguments.local_save_dir, arguments.local_dataset_path)
    except LaurelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for path in paths:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
