"""Finds similar files in a class. What they share with the starter says nothing, so it is left out."""

import dataclasses
import hashlib
import re

GRAM = 8  # consecutive tokens that are compared
NEAR = 0.7  # fraction of either file's runs beyond the starter that similar files share
FEWEST = 12  # with fewer runs beyond the starter there is nothing to compare

TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(?P<delimiter>[^\s()\\]{0,16})\(.*?\)(?P=delimiter)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""
    r"|[A-Za-z_]\w*|\.?\d(?:[\w.']|[eEpP][+-])*|<<=?|>>=?|[-+*/%&|^=!<>]=|&&|\|\||::|->|\+\+|--|\S",
    flags=re.DOTALL,
)


def tokens(source: str) -> list[str]:
    """Without comments and white space."""
    return [match[0] for match in TOKEN.finditer(source) if not match[0].startswith(("//", "/*"))]


def renamed(words: list[str]) -> list[str]:
    """The same with every name replaced by a single one, so that renaming changes nothing."""
    return ["name" if re.match(r"[A-Za-z_]", word) else word for word in words]


def grams(words: list[str]) -> set[int]:
    return {hash(tuple(words[i : i + GRAM])) for i in range(len(words) - GRAM + 1)}


@dataclasses.dataclass(frozen=True)
class Pair:
    first: int
    second: int
    how: str
    similarity: float


def token_hash(words: list[str]) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


def similar_pairs(files: dict[int, str], known: dict[int, str], starter: str, ptx: dict[int, str]) -> list[Pair]:
    """Pairs of `files`, and pairs of a file with one of `known`. `ptx` contains hashes of their compiled form. All are
    keyed by numbers, because two files may be shown under the same name."""
    everything = {number: tokens(text) for number, text in (files | known).items()}
    starter_words = tokens(starter)
    common, starter_hash = grams(renamed(starter_words)), token_hash(renamed(starter_words))
    exact = {number: token_hash(words) for number, words in everything.items()}
    names_aside = {number: token_hash(renamed(words)) for number, words in everything.items()}
    own = {number: grams(renamed(words)) - common for number, words in everything.items()}
    starters_ptx = {ptx[number] for number in ptx if names_aside.get(number) == starter_hash}
    pairs = []
    order = list(everything)
    for i, first in enumerate(order):
        for second in order[i + 1 :]:
            if (first in known and second in known) or starter_hash in (names_aside[first], names_aside[second]):
                continue
            shared = len(own[first] & own[second]) / max(1, len(own[first] | own[second]))
            if exact[first] == exact[second]:
                pairs.append(Pair(first, second, "same tokens", 1.0))
            elif names_aside[first] == names_aside[second]:
                pairs.append(Pair(first, second, "same tokens except for names", 1.0))
            elif first in ptx and ptx[first] == ptx.get(second) and ptx[first] not in starters_ptx:
                pairs.append(Pair(first, second, "same PTX", shared))
            elif shared >= NEAR and min(len(own[first]), len(own[second])) >= FEWEST:
                pairs.append(Pair(first, second, "similar tokens", shared))
    return sorted(pairs, key=lambda pair: (-pair.similarity, pair.first, pair.second))
