"""The pages for people say what the code does: links, keys, commands, paths, metrics, quoted code and messages."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from laurel.cli import app
from laurel.config.keys import leaf_of, leaves, sections
from laurel.config.tree import Config
from laurel.config.verl import moved, outside
from laurel.tracking.metrics import METRICS, declared

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
EVERY_PAGE = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

LINK = re.compile(r"\]\(([^)\s]+)\)")
# Groups at the top of the tree, and those that only verl has
TOP = "|".join([*Config.model_fields, "reward_model", "custom_reward_function", "global_profiler"])
KEY = re.compile(rf"(?<![\w./-])(?:{TOP})\.[A-Za-z_][\w.]*(?:\.\*)?")
SHORT = re.compile(r"(?:actor|rollout|ref|model|optim|fsdp_config|val_kwargs|kl_ctrl|engine_kwargs)\.[a-z_][\w.]*")
CODE = re.compile(r"^(```|~~~)[^\n]*\n(.*?)^\1", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
COMMAND = re.compile(r"(?:^|[\s/$;|&(])laurel ([a-z][\w-]*)(?: ([a-z][\w-]*)(?=\s|$))?", re.MULTILINE)
FILE = re.compile(
    r"(?<![\w./-])(?:laurel|tests|examples|docs|scripts|benchmarks)/[\w/.-]+\.(?:py|yaml|md|png|json|sh)\b"
)
PLACEHOLDER = re.compile(r"@[A-Z][A-Z0-9_]*@")
# PyPI's package of that name is someone else's
INSTALL_BY_NAME = re.compile(r"pip install (?:-\S+ )*['\"]?laurel\b(?!/)")
FOLDER = re.compile(r"(?<![\w./-])(?:laurel|tests|examples|docs|scripts|benchmarks)/[\w/]*/(?=`)")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(text: str) -> set[str]:
    """The names that a page's headings can be linked by, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", CODE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            broken.append(link)
    return broken


def code_of(text: str) -> list[str]:
    """What stands as code: fenced blocks, and spans outside of them."""
    return [block for _, block in CODE.findall(text)] + SPAN.findall(CODE.sub("", text))


def known(key: str) -> bool:
    """Whether a dotted key is in the tree, a group of it, or in one of the tables of verl's keys."""
    key = key.rstrip(".").removesuffix(".*")
    return (
        leaf_of(key) is not None
        or key in sections()
        or moved.new_name(key) is not None
        or outside.find(key) is not None
        or outside.find(key + ".x") is not None
    )


def known_short(key: str) -> bool:
    """Whether a key without its groups, such as rollout.n, ends a key of the tree."""
    return any(f".{key}." in f".{path}." for path in leaves()) or key.startswith("engine_kwargs.")


def unknown_keys(text: str) -> list[str]:
    """Keys that nothing knows, but for those that are shown as a mistake."""
    text = re.sub(r"\S+: unknown key", "", text)
    found = [key for key in KEY.findall(text) if not known(key) and not (ROOT / "laurel" / key).exists()]
    spans = [span.partition("=")[0].lstrip("+~") for span in SPAN.findall(CODE.sub("", text))]
    return found + [span for span in spans if SHORT.fullmatch(span) and not known_short(span)]


def names_of(typer_app) -> set[str]:
    return {command.name or command.callback.__name__ for command in typer_app.registered_commands}


def unknown_commands(text: str) -> list[str]:
    groups = {group.name: names_of(group.typer_instance) for group in app.registered_groups}
    wrong = []
    for first, second in (match for code in code_of(text) for match in COMMAND.findall(code)):
        if first not in names_of(app) | groups.keys() or (second and second not in groups.get(first, {second})):
            wrong.append(f"laurel {first} {second}".strip())
    return wrong


def unknown_metrics(text: str) -> list[str]:
    """Spans in the form of a metric that metrics.py does not declare; files of a room of that name are none."""
    stems = {metric.partition("/")[0] for metric in METRICS} - {"val-core", "val-aux"}
    form = re.compile(rf"(?:{'|'.join(sorted(stems))})/[\w/]+")
    spans = [span for span in SPAN.findall(CODE.sub("", text)) if form.fullmatch(span)]

    def wrong(metric: str) -> bool:
        try:
            return not declared(metric)
        except Exception:
            return not (ROOT / "laurel" / metric).exists()

    return [span for span in spans if wrong(span)]


@cache
def texts_of_the_code() -> str:
    """Every text in the package's source, parts of f-strings one by one, a line each."""
    found = []
    for path in (ROOT / "laurel").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def strange_messages(text: str) -> list[str]:
    """Headings that quote a message of which some part is in no text of the code."""
    quoted = re.findall(r"^### `(.+)`$", text, re.MULTILINE)
    return [message for message in quoted if any(p not in texts_of_the_code() for p in message.split("…"))]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_resolve(page):
    assert broken_links(page) == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_keys_exist(page):
    assert unknown_keys(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_exist(page):
    assert unknown_commands(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_exist(page):
    text = page.read_text(encoding="utf-8")
    assert [path for path in FILE.findall(text) + FOLDER.findall(text) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_metrics_are_declared(page):
    assert unknown_metrics(page.read_text(encoding="utf-8")) == []


def test_the_step_is_quoted_as_it_is():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    quoted = next(block for _, block in CODE.findall(page) if block.startswith("def learn("))
    assert quoted in (ROOT / "laurel" / "trainer" / "train.py").read_text(encoding="utf-8")


def test_quoted_messages_are_those_of_the_code():
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^### `", page, re.MULTILINE)) > 20
    assert strange_messages(page) == []


@pytest.mark.parametrize("page", EVERY_PAGE, ids=name)
def test_no_placeholder_was_left(page):
    assert PLACEHOLDER.findall(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", EVERY_PAGE, ids=name)
def test_nobody_is_sent_to_another_package_of_our_name(page):
    assert INSTALL_BY_NAME.findall(page.read_text(encoding="utf-8")) == []


def test_no_message_sends_anybody_there_either():
    assert INSTALL_BY_NAME.findall(texts_of_the_code()) == []


def test_the_checks_can_fail(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("[a](nowhere.md) [b](#no-heading) [c](#one-two) [d](https://example.org)\n# One: two\n")
    assert broken_links(page) == ["nowhere.md", "#no-heading"]
    assert unknown_keys("`trainer.nnode=2` trainer.nnodes=2 `rollout.m` `rollout.n=8`, `trainer.balance_batch`") == [
        "trainer.nnode",
        "rollout.m",
    ]
    assert unknown_commands("`laurel trian x=1` and `laurel data gsm9k`\n```\nlaurel data gsm8k --x\n```\n") == [
        "laurel trian",
        "laurel data gsm9k",
    ]
    assert unknown_commands("laurel is no command in plain text") == []
    assert unknown_metrics("`actor/pg_loss` `actor/pg_los`") == ["actor/pg_los"]
    quoted = "### `there are only … training rows; use at most …`\n### `no such message`\n"
    assert strange_messages(quoted) == ["no such message"]
    assert PLACEHOLDER.findall("after @STEPS@ steps, by me@host.org and @app") == ["@STEPS@"]
    wrong = ["pip install 'laurel[vllm]'", "pip install -U laurel", 'pip install "laurel"']
    assert all(INSTALL_BY_NAME.search(text) for text in wrong)
    assert not any(INSTALL_BY_NAME.search(text) for text in ("pip install -e '.[wandb]'", "pip install wandb"))
