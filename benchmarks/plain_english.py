"""
Draws thirty sentences and thirty names from the code and the documentation, for a reader to judge.

$ python benchmarks/plain_english.py
$ python benchmarks/plain_english.py --seed 7 --number 10

Sentences are messages, docstrings and documentation, a third each; names are identifiers and, one in five, files.
"""

import argparse
import ast
import gc
import random
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tagalong.errors import InvalidInput

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md", *sorted(ROOT.glob("docs/*.md"))]
MESSAGES = re.compile(r"(Error|Invalid\w*|Option|Argument|make_option|warning|info|print_line|_text|_problem)$")
ERRORS = re.compile(r"(Error|InvalidInput)$")
VALUE = "{…}"
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\[])")
NAMES_PER_FILE_NAME = 5


@cache
def trees() -> list[tuple[str, ast.Module, list[ast.AST]]]:
    """Returns the path, the tree and all nodes of every file of the source."""
    files = sorted((ROOT / "src").rglob("*.py"))
    parsed = [(file.relative_to(ROOT).as_posix(), ast.parse(file.read_text(encoding="utf-8"))) for file in files]
    return [(path, tree, list(ast.walk(tree))) for path, tree in parsed]


def docstrings() -> Iterator[str]:
    """Yields the sentences and the argument descriptions of every docstring."""
    for path, _, nodes in trees():
        for node in nodes:
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
                prose = re.sub(r"\n *Examples?:\n(.|\n)*", "", text)
                for paragraph in re.split(r"\n\s*\n|\n(?= *\w+: )", prose):
                    for sentence in SENTENCE.split(" ".join(paragraph.split())):
                        if len(sentence.split()) > 3:
                            yield f"{path}: {sentence}"


def messages() -> Iterator[str]:
    """Yields the texts of errors, warnings, help and output, with errors as their readers see them."""
    for path, tree, nodes in trees():
        for scope in [tree, *(node for node in nodes if isinstance(node, ast.FunctionDef))]:
            inside = nodes if scope is tree else list(ast.walk(scope))
            texts = {name: text_of(node.value, {}) for node in inside for name in assigned_names(node)}
            for node in inside if scope is not tree else calls_outside_functions(tree):
                if isinstance(node, ast.Call) and MESSAGES.search(ast.unparse(node.func)):
                    is_error = ERRORS.search(ast.unparse(node.func))
                    words = error_text(node, texts) if is_error else other_text(node, texts)
                    if len(words.split()) > 3:
                        yield f"{path}: {words}"


def calls_outside_functions(tree: ast.Module) -> Iterator[ast.AST]:
    for node in tree.body:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield from ast.walk(node)


def error_text(call: ast.Call, texts: dict[str, str]) -> str:
    """Returns the sentence that an error would print, with {…} in place of values."""
    given = [text_of(value, texts) for value in call.args] + [""] * 4
    named = {keyword.arg: text_of(keyword.value, texts) for keyword in call.keywords}
    if len(call.args) + len(call.keywords) < 2:
        return given[0]
    fields = [
        named.get(name, text) for name, text in zip(("argument", "expected", "found", "hint"), given, strict=False)
    ]
    return str(InvalidInput(*fields))


def other_text(call: ast.Call, texts: dict[str, str]) -> str:
    given = [text_of(value, texts) for value in [*call.args, *(keyword.value for keyword in call.keywords)]]
    return " | ".join(text for text in given if text not in ("", VALUE))


def assigned_names(node: ast.AST) -> list[str]:
    return [t.id for t in node.targets if isinstance(t, ast.Name)] if isinstance(node, ast.Assign) else []


def text_of(node: ast.expr, texts: dict[str, str]) -> str:
    """Returns a string literal, also one that a variable was set to, with {…} in place of other values."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else VALUE for part in node.values)
    return texts.get(node.id, VALUE) if isinstance(node, ast.Name) else VALUE


def documentation() -> Iterator[str]:
    """Yields the sentences of the pages, without code, tables and headings."""
    for page in PAGES:
        path = ROOT / page
        prose = re.sub(r"^( *)```(.|\n)*?^\1```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        prose = re.sub(r"^( {4,}.*|\||#|<|!).*$", "", prose, flags=re.MULTILINE)
        for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", prose):
            for sentence in SENTENCE.split(" ".join(paragraph.split())):
                if len(sentence.split()) > 4:
                    yield f"{path.relative_to(ROOT).as_posix()}: {sentence}"


def identifiers() -> Iterator[str]:
    """Yields functions, classes, arguments and constants, each once per file."""
    for path, _, nodes in trees():
        names: set[str] = set()
        for node in nodes:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(f"{'class' if isinstance(node, ast.ClassDef) else 'def'} {node.name}")
            elif isinstance(node, ast.arg) and len(node.arg) > 1:
                names.add(f"argument {node.arg}")
            elif isinstance(node, ast.Assign):
                names |= {f"constant {t.id}" for t in node.targets if isinstance(t, ast.Name) and t.id.isupper()}
        yield from (f"{path}: {name}" for name in sorted(names) if "__" not in name and not name.endswith(" self"))


def files() -> Iterator[str]:
    """Yields the files of the package."""
    yield from (path for path, *_ in trees() if not path.endswith("__.py"))


def draw(number: int, seed: int) -> dict[str, list[str]]:
    generator = random.Random(seed)

    def some(found: Iterator[str], count: int) -> list[str]:
        return generator.sample(sorted(set(found)), count)

    third, file_names = number // 3, number // NAMES_PER_FILE_NAME
    texts = [*some(messages(), third), *some(docstrings(), third), *some(documentation(), number - 2 * third)]
    names = [*some(identifiers(), number - file_names), *some(files(), file_names)]
    return {"sentences": texts, "names": names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--number", type=int, default=30, help="number of sentences and names (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the draw (default: %(default)s)")
    args = parser.parse_args()
    gc.disable()  # collections would search a million nodes of syntax trees again and again
    for heading, drawn in draw(args.number, args.seed).items():
        print(f"{heading}:")
        for place, text in enumerate(drawn, 1):
            print(f"{place:3}. {text}")
        print()


if __name__ == "__main__":
    main()
