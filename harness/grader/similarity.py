"""Finds similar files: in a class, and between a class and files that are known, such as the reference answer and the
files of earlier years. What they share with the starter says nothing, so it is left out."""

import dataclasses
import hashlib
import re

GRAM = 8  # consecutive tokens that are compared
NEAR = 0.6  # fraction of its runs beyond the starter that the file with fewer of them shares with a similar file
FEWEST = 12  # with fewer runs beyond the starter there is nothing to compare

# Each alternative accepts the end of the file in place of its own end: otherwise each of many openings without an end
# would search the whole rest of the file.
TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?(?:\*/|\Z)|R"(?P<delimiter>[^\s()\\]{0,16})\(.*?(?:\)(?P=delimiter)"|\Z)"""
    r"""|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?"""
    r"|[A-Za-z_]\w*|\.?\d(?:[\w.']|[eEpP][+-])*|<<=?|>>=?|[-+*/%&|^=!<>]=|&&|\|\||::|->|\+\+|--|\S",
    flags=re.DOTALL,
)


def tokens(source: str) -> list[str]:
    """Without comments and white space."""
    return [match[0] for match in TOKEN.finditer(source) if not match[0].startswith(("//", "/*"))]


def renamed(words: list[str]) -> list[str]:
    """The same with every name replaced by a single one, so that renaming changes nothing."""
    return ["name" if re.match(r"[A-Za-z_]", word) else word for word in words]


def renumbered(words: list[str]) -> list[str]:
    """The same with every number replaced by a single one: another course has other sizes."""
    return ["0" if re.match(r"\.?\d", word) else word for word in words]


def grams(words: list[str]) -> set[int]:
    return {hash(tuple(words[i : i + GRAM])) for i in range(len(words) - GRAM + 1)}


def token_hash(words: list[str]) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Pair:
    first: int
    second: int
    how: str
    similarity: float


class Form:
    """A file in the forms in which it is compared."""

    def __init__(self, source: str) -> None:
        words = tokens(source)
        without_names = renamed(words)
        shape = renumbered(without_names)
        self.exact, self.names_aside, self.shape = token_hash(words), token_hash(without_names), token_hash(shape)
        self.grams = grams(shape)


def similar_pairs(files: dict[int, str], known: dict[int, str], starter: str, ptx: dict[int, str]) -> list[Pair]:
    """Pairs of `files`, and pairs of a file with one of `known`. `ptx` contains hashes of their compiled form. All are
    keyed by numbers, because two files may be shown under the same name."""
    given = Form(starter)
    starters_ptx: set[str] = set()
    forms: dict[int, Form] = {}
    for number, text in (files | known).items():
        form = Form(text)
        if form.names_aside == given.names_aside or (number in known and form.shape == given.shape):
            starters_ptx.add(ptx.get(number, ""))
        else:
            form.grams -= given.grams
            forms[number] = form
    pairs = []
    order = list(forms)
    for i, first in enumerate(order):
        for second in order[i + 1 :]:
            if first in known:
                break  # and so is all that follows
            a, b = forms[first], forms[second]
            fewer = min(len(a.grams), len(b.grams))
            shared = len(a.grams & b.grams) / max(1, fewer)
            if a.exact == b.exact:
                pairs.append(Pair(first, second, "same tokens", 1.0))
            elif a.names_aside == b.names_aside:
                pairs.append(Pair(first, second, "same tokens except for names", 1.0))
            elif second in known and a.shape == b.shape:
                pairs.append(Pair(first, second, "same tokens except for names and numbers", 1.0))
            elif first in ptx and ptx[first] == ptx.get(second) and ptx[first] not in starters_ptx:
                pairs.append(Pair(first, second, "same PTX", shared))
            elif shared >= NEAR and fewer >= FEWEST:
                pairs.append(Pair(first, second, "similar tokens", shared))
    return sorted(pairs, key=lambda pair: (-pair.similarity, pair.first, pair.second))
