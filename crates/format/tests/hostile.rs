//! Files that are damaged or made to do harm: each gives a typed error that names its place, without a panic, in
//! bounded time, with memory bounded by the size of the file and never by what the file announces.

#[path = "hostile/bounds.rs"]
mod bounds;
#[path = "hostile/counting.rs"]
mod counting;
mod support;

use std::path::Path;

use bounds::{MEMORY_FACTOR, MEMORY_FLOOR_BYTES, bounded};
use counting::peak_bytes;
use goldcrest_format::gguf::{self, Gguf, GgufError, Problem};
use goldcrest_format::safetensors::{self as st, SafetensorsError};
use goldcrest_format::{Checkpoint, FormatError, Source, hf};
use support::{ARRAY, BOOL, GgufBuilder, I32, STRING, TempFolder, U64, array, repository_tests, safetensors, string};

fn read_gguf(file: &[u8]) -> Result<Gguf, GgufError> {
    let source = Source::memory("hostile", file.to_vec());
    bounded(file.len(), || gguf::read(&source, 0))
}

/// Reads a file that must be refused; checks the place and returns the problem.
fn refused(file: &GgufBuilder, at: &str) -> Problem {
    let file = file.build();
    let error = read_gguf(&file).expect_err(at);
    assert_eq!(error.at, at, "{error}");
    assert!(error.offset <= file.len() as u64, "{error}");
    error.problem
}

macro_rules! assert_problem {
    ($file:expr, $at:expr, $pattern:pat) => {
        let problem = refused(&$file, $at);
        assert!(matches!(problem, $pattern), "{}: {problem:?}", $at);
    };
}

const HUGE: [u64; 6] = [1 << 62, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, u64::MAX - 7, u64::MAX];

#[test]
fn counts_of_the_header_are_not_believed() {
    for count in HUGE {
        let mut file = GgufBuilder::new().u32("a", 1);
        file.key_count = Some(count);
        assert_problem!(file, "key count", Problem::Count { .. });
        file.key_count = None;
        file.tensor_count = Some(count);
        assert_problem!(file, "tensor count", Problem::Count { .. });
    }
    let mut file = GgufBuilder::new().u32("a", 1);
    file.key_count = Some(2);
    assert_problem!(file, "key count", Problem::Count { .. });
}

#[test]
fn tensor_sizes_do_not_wrap() {
    let huge = (1u64 << 42) + 1;
    for dims in [
        vec![huge, 1 << 22],
        vec![huge, 1 << 20, 4],
        vec![u64::MAX, u64::MAX],
        vec![1 << 32, 1 << 32],
    ] {
        assert_problem!(GgufBuilder::new().row("t", &dims, 0, 0), "t", Problem::Elements);
    }
    for dims in [vec![huge], vec![huge, 1 << 18], vec![u64::MAX / 4]] {
        assert_problem!(
            GgufBuilder::new().row("t", &dims, 0, 0),
            "t",
            Problem::DataPastEnd { .. }
        );
    }
    assert_problem!(GgufBuilder::new().row("t", &[1 << 62], 0, 0), "t", Problem::Type(_));
    assert_problem!(GgufBuilder::new().row("t", &[4, 0], 0, 0), "t", Problem::EmptyDim);
    assert_problem!(
        GgufBuilder::new().row("t", &[1; 5], 0, 0),
        "t",
        Problem::Dims { dims: 5, .. }
    );
    assert_problem!(
        GgufBuilder::new().row("t", &[48, 2], 2, 0),
        "t",
        Problem::Row { row: 48, .. }
    );
    assert_problem!(GgufBuilder::new().row("t", &[1], 9, 0), "t", Problem::Type(_));
    assert_problem!(GgufBuilder::new().row("t", &[1], u32::MAX, 0), "t", Problem::Type(_));
}

#[test]
fn tensor_data_lies_in_the_file_and_apart() {
    let data = [0; 64];
    for offset in [32, 64, 1 << 40, u64::MAX - 31] {
        let file = GgufBuilder::new().row("t", &[16], 0, offset).data(&data);
        assert_problem!(file, "t", Problem::DataPastEnd { .. });
    }
    let file = GgufBuilder::new().row("t", &[1], 0, 4).data(&data);
    assert_problem!(
        file,
        "t",
        Problem::Misaligned {
            value: 4,
            alignment: 32
        }
    );
    let file = GgufBuilder::new()
        .row("a", &[16], 0, 0)
        .row("b", &[8], 0, 32)
        .data(&data);
    assert_problem!(file, "b", Problem::Overlap { .. });
    let file = GgufBuilder::new()
        .row("a", &[8], 0, 0)
        .row("b", &[8], 0, 32)
        .data(&data);
    assert_eq!(read_gguf(&file.build()).unwrap().tensors.len(), 2);
    assert!(read_gguf(&file.build()[..file.build().len() - 1]).is_err());
}

#[test]
fn the_alignment_is_a_power_of_two_of_the_right_type() {
    let key = b"general.alignment";
    let at = "general.alignment";
    for value in [0u32, 3, 33, u32::MAX] {
        let file = GgufBuilder::new().u32(at, value).f32_tensor("t", &[1], &[1.0]);
        assert_problem!(file, at, Problem::Alignment { .. });
    }
    for (value_type, value) in [(U64, 1u64 << 63), (U64, 32), (I32, 32)] {
        let width = if value_type == I32 { 4 } else { 8 };
        let file = GgufBuilder::new().key(key, value_type, &value.to_le_bytes()[..width]);
        assert_problem!(file, at, Problem::Alignment { .. });
    }
    assert_problem!(GgufBuilder::new().str(at, "32"), at, Problem::Alignment { .. });
    let file = GgufBuilder::new().u32(at, 1 << 31).f32_tensor("t", &[1], &[1.0]);
    assert_problem!(file, "t", Problem::DataPastEnd { .. });
}

#[test]
fn lengths_are_not_believed() {
    for length in [4, 1 << 31, 1 << 32].into_iter().chain(HUGE) {
        let value = [length.to_le_bytes().as_slice(), b"abc"].concat();
        assert_problem!(
            GgufBuilder::new().key(b"s", STRING, &value),
            "s",
            Problem::Truncated { .. }
        );
        let strings = array(STRING, 1, &value);
        assert_problem!(
            GgufBuilder::new().key(b"s", ARRAY, &strings),
            "s",
            Problem::Truncated { .. }
        );
    }
    for count in HUGE {
        for element_type in 0..=12 {
            let value = array(element_type, count, &[0; 16]);
            assert_problem!(GgufBuilder::new().key(b"a", ARRAY, &value), "a", Problem::Count { .. });
        }
    }
    // A name with an impossible length, where no key is known yet.
    let mut file = GgufBuilder::new().u32("a", 1).build();
    file[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
    let error = read_gguf(&file).unwrap_err();
    assert!(
        matches!(
            error,
            GgufError {
                offset: 24,
                problem: Problem::NameTooLong { .. },
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn arrays_in_arrays_have_a_limit() {
    let nested = |depth: usize| (1..depth).fold(array(0, 1, &[7]), |inner, _| array(ARRAY, 1, &inner));
    assert!(read_gguf(&GgufBuilder::new().key(b"a", ARRAY, &nested(8)).build()).is_ok());
    for depth in [9, 1000, 80_000] {
        assert_problem!(
            GgufBuilder::new().key(b"a", ARRAY, &nested(depth)),
            "a",
            Problem::Depth { .. }
        );
    }
}

#[test]
fn values_outside_their_type_are_refused() {
    assert_problem!(
        GgufBuilder::new().key(b"b", BOOL, &[2]),
        "b",
        Problem::Bool { found: 2 }
    );
    let bools = array(BOOL, 3, &[0, 1, 255]);
    assert_problem!(
        GgufBuilder::new().key(b"b", ARRAY, &bools),
        "b",
        Problem::Bool { found: 255 }
    );
    for id in [13, 255, u32::MAX] {
        assert_problem!(
            GgufBuilder::new().key(b"v", id, &[0; 8]),
            "v",
            Problem::ValueType { .. }
        );
        let value = array(id, 0, &[]);
        assert_problem!(
            GgufBuilder::new().key(b"v", ARRAY, &value),
            "v",
            Problem::ValueType { .. }
        );
    }
    assert_problem!(
        GgufBuilder::new().key(b"s", STRING, &string(&[0xFF])),
        "s",
        Problem::Utf8 { .. }
    );
    assert_problem!(
        GgufBuilder::new().key(&[0xFF], BOOL, &[1]),
        "name of key 0",
        Problem::Utf8 { .. }
    );
    // Valid only as a whole: a character cut between two strings.
    let halves = [string(b"ok"), string(&[0xC3]), string(&[0xBC])].concat();
    let file = GgufBuilder::new().key(b"s", ARRAY, &array(STRING, 3, &halves));
    assert_problem!(file, "s", Problem::Utf8 { index: 1 });
}

#[test]
fn names_occur_once() {
    let file = GgufBuilder::new().u32("a", 1).u32("b", 2).u32("a", 3);
    assert_problem!(file, "a", Problem::Duplicate);
    let file = GgufBuilder::new()
        .f32_tensor("t", &[1], &[1.0])
        .f32_tensor("t", &[1], &[2.0]);
    assert_problem!(file, "t", Problem::Duplicate);
}

#[test]
fn other_formats_are_refused_by_name() {
    let mut file = GgufBuilder::new();
    file.magic = *b"lmgg";
    assert_problem!(
        file,
        "magic",
        Problem::Magic {
            found: [b'l', b'm', b'g', b'g']
        }
    );
    file.magic = *b"GGUF";
    for version in [0, 1, 4, u32::MAX] {
        file.version = version;
        assert_problem!(file, "version", Problem::Version { .. });
    }
    for version in [2u32, 3] {
        file.version = version.swap_bytes();
        assert_problem!(file, "version", Problem::BigEndian);
        file.version = version;
        assert!(read_gguf(&file.build()).is_ok());
    }
}

/// Every prefix is refused, and no prefix holds much memory.
fn refuse_prefixes(file: &[u8], lengths: impl Iterator<Item = usize>) {
    for length in lengths {
        let source = Source::memory("prefix", file[..length].to_vec());
        let (result, peak) = peak_bytes(|| gguf::read(&source, 0));
        let error = result.expect_err("a prefix is not a whole file");
        assert!(error.offset <= length as u64 && !error.at.is_empty(), "{error}");
        assert!(
            peak <= MEMORY_FACTOR * length + MEMORY_FLOOR_BYTES,
            "{peak} bytes were held for {length}"
        );
    }
}

#[test]
fn every_prefix_of_a_file_is_refused() {
    let words = [string("ein".as_bytes()), string("größe".as_bytes())].concat();
    let nested = array(ARRAY, 1, &array(U64, 1, &[1; 8]));
    let file = GgufBuilder::new()
        .str("name", "all kinds")
        .key(b"flag", BOOL, &[1])
        .key(b"words", ARRAY, &array(STRING, 2, &words))
        .key(b"nested", ARRAY, &nested)
        .f32_tensor("first", &[2, 2], &[1.0; 4])
        .f32_tensor("second", &[3], &[2.0; 3])
        .build();
    assert_eq!(read_gguf(&file).unwrap().tensors.len(), 2);
    refuse_prefixes(&file, 0..file.len());
}

#[test]
fn every_prefix_of_the_goldens_is_refused() {
    for name in ["llama3", "mistral_swa", "qwen3"] {
        let file = std::fs::read(repository_tests("goldens-gguf").join(name).with_extension("gguf")).unwrap();
        let gguf = read_gguf(&file).unwrap();
        let header = gguf.tensors.iter().map(|tensor| tensor.offset).min().unwrap() as usize;
        refuse_prefixes(
            &file,
            (0..header)
                .chain((header..file.len()).step_by(4099))
                .chain([file.len() - 1]),
        );
    }
}

/// The metadata and tensor table of a published model, its vocabulary shortened (`fixtures/make_smollm2.py`).
#[test]
fn every_prefix_of_a_real_header_is_refused() {
    let file = include_bytes!("fixtures/smollm2-header.gguf");
    refuse_prefixes(file, 0..=file.len());
}

/// The file whose header that is, where `GOLDCREST_FIXTURES` names a folder that holds it.
fn published_file() -> Option<Source> {
    let folder = std::env::var_os("GOLDCREST_FIXTURES")?;
    Some(Source::open(&Path::new(&folder).join("smollm2-135m-instruct-q4_1.gguf")).unwrap())
}

/// The start of a file, up to `extra_bytes` into the data of its first tensor.
fn header(source: &Source, gguf: &Gguf, extra_bytes: usize) -> Vec<u8> {
    let header = gguf.tensors.iter().map(|tensor| tensor.offset).min().unwrap() as usize;
    let mut bytes = vec![0; header + extra_bytes];
    source.read_exact_at(0, &mut bytes).unwrap();
    bytes
}

/// The published header has 1.8 MB, too many prefixes for every run: all of the first 16 KiB, and a sample of the others.
#[test]
fn prefixes_of_the_published_file_are_refused() {
    let Some(source) = published_file() else {
        println!("SKIPPED: GOLDCREST_FIXTURES names no folder; cargo xtask test does");
        return;
    };
    let gguf = bounded(source.length() as usize, || gguf::read(&source, 0)).unwrap();
    assert_eq!(
        (gguf.tensors.len(), gguf.metadata.u32("llama.block_count")),
        (272, Ok(30))
    );
    let file = header(&source, &gguf, 4096);
    refuse_prefixes(&file, (0..16 << 10).chain((16 << 10..file.len()).step_by(2503)));
}

/// All prefixes that the test above takes samples of. Whoever asks for it has the file: its absence is a failure.
#[test]
#[ignore = "takes 50 minutes of CPU"]
fn every_prefix_of_the_published_header_is_refused() {
    let source = published_file().expect("GOLDCREST_FIXTURES names the folder of the published file");
    let file = header(&source, &gguf::read(&source, 0).unwrap(), 0);
    // Longer prefixes take longer: strides give each thread as many of every length. Memory is counted by thread.
    let threads = std::thread::available_parallelism().unwrap().get();
    std::thread::scope(|scope| {
        for first in 0..threads {
            let lengths = (first..=file.len()).step_by(threads);
            let file = &file;
            scope.spawn(move || refuse_prefixes(file, lengths));
        }
    });
    println!("{} prefixes were refused", file.len() + 1);
}

/// A megabyte of the smallest things that a file can hold, which costs the most memory and time for its size.
#[test]
fn crowded_files_stay_in_bounds() {
    const COUNT: u64 = 40_000;
    let keys = (0..COUNT).fold(GgufBuilder::new(), |file, i| {
        file.key(format!("{i:x}").as_bytes(), BOOL, &[1])
    });
    assert_eq!(read_gguf(&keys.build()).unwrap().metadata.len(), COUNT as usize);
    let tensors = (0..30_000).fold(GgufBuilder::new(), |file, i| {
        file.row(&format!("{i:x}"), &[1], 24, 32 * i)
    });
    let tensors = tensors.data(&vec![0; 32 * 30_000]);
    assert_eq!(read_gguf(&tensors.build()).unwrap().tensors.len(), 30_000);
    for (element_type, element) in [(STRING, string(b"")), (ARRAY, array(0, 0, &[])), (BOOL, vec![1])] {
        let count = (1 << 20) / element.len();
        let value = array(element_type, count as u64, &element.repeat(count));
        let gguf = read_gguf(&GgufBuilder::new().key(b"many", ARRAY, &value).build()).unwrap();
        assert!(matches!(gguf.metadata.get("many"), Some(gguf::Value::Array(array)) if array.len() == count));
    }
}

fn read_safetensors(file: &[u8]) -> Result<usize, SafetensorsError> {
    let source = Source::memory("hostile", file.to_vec());
    bounded(file.len(), || st::read(&source, 0)).map(|tensors| tensors.len())
}

#[test]
fn safetensors_headers_are_not_believed() {
    for length in HUGE.into_iter().chain([3, 100_000_001]) {
        let file = [length.to_le_bytes().as_slice(), b"{}"].concat();
        assert!(
            matches!(read_safetensors(&file), Err(SafetensorsError::HeaderLength { .. })),
            "{length}"
        );
    }
    let tensor =
        |shape: &str, range: &str| format!(r#"{{"t":{{"dtype":"F32","shape":[{shape}],"data_offsets":[{range}]}}}}"#);
    assert_eq!(
        read_safetensors(&safetensors(&tensor("2,1", "0,8"), &[0; 8])).unwrap(),
        1
    );
    for (shape, range) in [
        ("2", "0,4"),
        ("2", "8,0"),
        ("2", "4,12"),
        ("4611686018427387905", "0,4"),
        ("4294967296,4294967296", "0,0"),
        ("18446744073709551616", "0,8"),
        ("-1", "0,8"),
        ("2", "0,18446744073709551615"),
    ] {
        let result = read_safetensors(&safetensors(&tensor(shape, range), &[0; 8]));
        assert!(
            matches!(result, Err(SafetensorsError::Header { .. })),
            "{shape} {range}: {result:?}"
        );
    }
    let empty = read_safetensors(&safetensors(&tensor("0,4294967296,4294967296", "0,0"), &[]));
    assert!(matches!(empty, Err(SafetensorsError::Elements { .. })), "{empty:?}");
    for data in [0, 7, 9] {
        let result = read_safetensors(&safetensors(&tensor("2", "0,8"), &vec![0; data]));
        assert!(
            matches!(result, Err(SafetensorsError::Length { .. })),
            "{data}: {result:?}"
        );
    }
    let twice =
        r#"{"t":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"t":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}"#;
    assert!(matches!(
        read_safetensors(&safetensors(twice, &[0])),
        Err(SafetensorsError::Duplicate { .. })
    ));
    let broken = safetensors("{\n\n  \"t\": 7}", &[]);
    let result = read_safetensors(&broken);
    assert!(
        matches!(result, Err(SafetensorsError::Header { offset, .. }) if offset == broken.len() as u64 - 1),
        "{result:?}"
    );
    let unknown = r#"{"t":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}}"#;
    assert!(matches!(
        read_safetensors(&safetensors(unknown, &[0; 8])),
        Err(SafetensorsError::Type { .. })
    ));
}

#[test]
fn every_prefix_of_a_safetensors_file_is_refused() {
    let file = std::fs::read(repository_tests("goldens/llama3/model.safetensors")).unwrap();
    let header = 8 + u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
    for length in (0..header)
        .chain((header..file.len()).step_by(4099))
        .chain([file.len() - 1])
    {
        let source = Source::memory("prefix", file[..length].to_vec());
        let (result, peak) = peak_bytes(|| st::read(&source, 0));
        assert!(result.is_err());
        assert!(
            peak <= MEMORY_FACTOR * length + MEMORY_FLOOR_BYTES,
            "{peak} bytes were held for {length}"
        );
    }
}

#[test]
fn crowded_json_stays_in_bounds() {
    let entry = |i: usize| format!(r#""{i:x}":{{"dtype":"U8","shape":[],"data_offsets":[{i},{}]}}"#, i + 1);
    let entries: Vec<String> = (0..15_000).map(entry).collect();
    let file = safetensors(&format!("{{{}}}", entries.join(",")), &[0; 15_000]);
    assert_eq!(read_safetensors(&file).unwrap(), 15_000);
    let shape = vec!["1"; 400_000].join(",");
    let file = safetensors(
        &format!(r#"{{"t":{{"dtype":"U8","shape":[{shape}],"data_offsets":[0,1]}}}}"#),
        &[0],
    );
    assert_eq!(read_safetensors(&file).unwrap(), 1);
    for element in ["0", "[]", "{}", r#"{"":0}"#, r#""""#] {
        let elements = vec![element; 900_000 / (element.len() + 1)].join(",");
        let file = format!(r#"{{"a":[{elements}]}}"#);
        let object = bounded(file.len(), || {
            hf::parse_object(Path::new("config.json"), file.as_bytes())
        });
        assert_eq!(object.unwrap().len(), 1, "{element}");
    }
}

#[test]
fn code_in_a_model_folder_is_inert() {
    let folder = TempFolder::new("code");
    let config = r#"{"auto_map":{"AutoModel":"modeling.Model"},"architectures":["Model"]}"#;
    folder.write("config.json", config);
    let header = r#"{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    folder.write("model.safetensors", safetensors(header, &[0]));
    // Code that is opened at all fails here: the name is a folder.
    std::fs::create_dir(folder.path().join("modeling.py")).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.tensors().len(), 1);
    assert!(matches!(checkpoint.config(), goldcrest_format::Config::Hf(config) if config.len() == 2));
}

#[test]
fn a_file_that_shrinks_after_opening_is_a_typed_error() {
    let folder = TempFolder::new("shrinks");
    let path = folder.write("m.gguf", GgufBuilder::new().f32_tensor("t", &[64], &[1.0; 64]).build());
    let checkpoint = Checkpoint::open(&path).unwrap();
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(100)
        .unwrap();
    let result = checkpoint.decode(checkpoint.tensor("t").unwrap(), &mut [0.0; 64]);
    assert!(matches!(result, Err(FormatError::Source(_))), "{result:?}");
}

#[test]
fn names_from_a_file_are_shortened_and_escaped_in_messages() {
    let key = format!("\u{1b}[31m{}", "x".repeat(60_000));
    let error = read_gguf(&GgufBuilder::new().key(key.as_bytes(), BOOL, &[2]).build())
        .unwrap_err()
        .to_string();
    assert!(error.len() < 300 && error.contains("\\u{1b}"), "{error}");
}
