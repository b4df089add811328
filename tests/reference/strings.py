"""The seeded test strings. `README.md` holds the same rules in words; any change here changes every reference."""

import json
from pathlib import Path

COUNT = 10_000
CATEGORIES = 12
MASK = (1 << 64) - 1

ALPHABETS = json.loads((Path(__file__).parent / "alphabets.json").read_text(encoding="utf-8"))


class Random:
    """SplitMix64."""

    def __init__(self, seed):
        self.state = seed & MASK

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, n):
        return self.next() % n

    def pick(self, items):
        """An element of a list, or a scalar value of a string."""
        return items[self.below(len(items))]


def string(index):
    """Test string `index`, 0 <= index < COUNT; strings do not depend on each other."""
    return category_string(Random(index), index % CATEGORIES)


def category_string(random, category):
    """Draws in the order written: first the length, then element by element, left to right."""
    if category == 11:
        return "".join(category_string(random, random.below(11)) for _ in range(2 + random.below(3)))
    if category == 6:
        character, length = random.pick(ALPHABETS["run_characters"]), 1 + random.below(300)
        return random.pick(ALPHABETS["words"]) + character * length + random.pick(ALPHABETS["words"])
    length = 1 + random.below(MOST_ELEMENTS[category])
    return "".join(ELEMENTS[category](random) for _ in range(length))


def scalar(random):
    plane = random.below(4)
    if plane == 0:
        value = random.below(0x110000)
    elif plane == 1:
        value = random.below(0x10000)
    elif plane == 2:
        value = random.below(0x3000)
    else:
        value = 0x1F000 + random.below(0x1000)
    return "\ufffd" if 0xD800 <= value < 0xE000 else chr(value)


def spaces(random):
    run = random.pick(ALPHABETS["spaces"]) * (1 + random.below(6))
    return run if random.below(2) == 0 else run + random.pick(ALPHABETS["words"])


def digits(random):
    alphabet = random.pick(ALPHABETS["digits"])
    run = "".join(random.pick(alphabet) for _ in range(1 + random.below(8)))
    return run + random.pick(ALPHABETS["digit_separators"])


def script(random):
    if random.below(4) == 0:
        return random.pick(ALPHABETS["emoji"])
    alphabet = random.pick(ALPHABETS["scripts"])
    word = "".join(random.pick(alphabet) for _ in range(1 + random.below(8)))
    return word if random.below(2) == 0 else word + " "


def control(random):
    text = random.pick(ALPHABETS["controls"]) if random.below(2) == 0 else random.pick(ALPHABETS["words"])
    return text + random.pick(["", " ", "\n", "  "])


ELEMENTS = {
    0: scalar,
    1: lambda random: chr(0x20 + random.below(95)),
    2: spaces,
    3: digits,
    4: script,
    5: control,
    7: lambda random: random.pick(ALPHABETS["code"]),
    8: lambda random: random.pick(ALPHABETS["words"]) + random.pick(ALPHABETS["newlines"]),
    9: lambda random: random.pick(ALPHABETS["words"]) + random.pick(ALPHABETS["contractions"]) + random.pick(["", " "]),
    10: lambda random: chr(random.below(256)),
}
MOST_ELEMENTS = {0: 40, 1: 120, 2: 16, 3: 16, 4: 16, 5: 12, 7: 24, 8: 16, 9: 16, 10: 80}
