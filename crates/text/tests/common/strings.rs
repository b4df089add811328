//! The seeded test strings of `tests/reference`, made by the rules in its README.

use serde_json::Value;

/// SplitMix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn pick<'a>(&mut self, items: &[&'a str]) -> &'a str {
        items[self.below(items.len() as u64) as usize]
    }

    /// A string of a list, or a scalar value of a string.
    fn pick_json(&mut self, items: &Value) -> String {
        match items {
            Value::String(text) => {
                let n = self.below(text.chars().count() as u64);
                text.chars().nth(n as usize).unwrap().to_string()
            }
            _ => {
                let items = items.as_array().unwrap();
                items[self.below(items.len() as u64) as usize].as_str().unwrap().into()
            }
        }
    }
}

pub struct Strings {
    alphabets: Value,
}

impl Strings {
    pub fn open() -> Self {
        Strings {
            alphabets: super::json(&super::repository_tests().join("reference/alphabets.json")),
        }
    }

    pub fn string(&self, index: u64) -> String {
        self.category(&mut Random::new(index), index % 12)
    }

    fn category(&self, random: &mut Random, category: u64) -> String {
        const MOST: [u64; 11] = [40, 120, 16, 16, 16, 12, 0, 24, 16, 16, 80];
        match category {
            11 => {
                let parts = 2 + random.below(3);
                (0..parts)
                    .map(|_| {
                        let category = random.below(11);
                        self.category(random, category)
                    })
                    .collect()
            }
            6 => {
                let character = random.pick_json(&self.alphabets["run_characters"]);
                let run = character.repeat(1 + random.below(300) as usize);
                let before = self.word(random);
                before + &run + &self.word(random)
            }
            _ => {
                let length = 1 + random.below(MOST[category as usize]);
                (0..length).map(|_| self.element(random, category)).collect()
            }
        }
    }

    fn element(&self, random: &mut Random, category: u64) -> String {
        let code = |value: u64| char::from_u32(value as u32).unwrap_or('\u{FFFD}').to_string();
        match category {
            0 => code(scalar(random)),
            1 => code(0x20 + random.below(95)),
            2 => self.spaces(random),
            3 => self.digits(random),
            4 => self.script(random),
            5 => {
                let list = if random.below(2) == 0 { "controls" } else { "words" };
                let text = random.pick_json(&self.alphabets[list]);
                text + random.pick(&["", " ", "\n", "  "])
            }
            7 => random.pick_json(&self.alphabets["code"]),
            8 => self.word(random) + &random.pick_json(&self.alphabets["newlines"]),
            9 => {
                let word = self.word(random) + &random.pick_json(&self.alphabets["contractions"]);
                word + random.pick(&["", " "])
            }
            10 => code(random.below(256)),
            _ => unreachable!("there are eleven element categories"),
        }
    }

    fn word(&self, random: &mut Random) -> String {
        random.pick_json(&self.alphabets["words"])
    }

    fn spaces(&self, random: &mut Random) -> String {
        let space = random.pick_json(&self.alphabets["spaces"]);
        let run = space.repeat(1 + random.below(6) as usize);
        if random.below(2) == 0 {
            run
        } else {
            run + &self.word(random)
        }
    }

    fn digits(&self, random: &mut Random) -> String {
        let lists = self.alphabets["digits"].as_array().unwrap();
        let alphabet = &lists[random.below(lists.len() as u64) as usize];
        let count = 1 + random.below(8);
        let run: String = (0..count).map(|_| random.pick_json(alphabet)).collect();
        run + &random.pick_json(&self.alphabets["digit_separators"])
    }

    fn script(&self, random: &mut Random) -> String {
        if random.below(4) == 0 {
            return random.pick_json(&self.alphabets["emoji"]);
        }
        let lists = self.alphabets["scripts"].as_array().unwrap();
        let alphabet = &lists[random.below(lists.len() as u64) as usize];
        let count = 1 + random.below(8);
        let word: String = (0..count).map(|_| random.pick_json(alphabet)).collect();
        if random.below(2) == 0 { word } else { word + " " }
    }
}

fn scalar(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => random.below(0x11_0000),
        1 => random.below(0x1_0000),
        2 => random.below(0x3000),
        _ => 0x1_F000 + random.below(0x1000),
    }
}

/// 32-bit FNV-1a.
pub fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u32 {
    bytes.into_iter().fold(0x811C_9DC5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}
