"""The three model files that the references are made from, and the places they are read from and written to."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import gguf

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent


@dataclass(frozen=True)
class Model:
    """A published GGUF file: `name` is the folder of its references, `text` the teacher-forced text."""

    name: str
    sha256: str
    text: str

    def file(self) -> Path:
        return REPOSITORY / "target" / "fixtures" / f"{self.name}.gguf"

    def folder(self) -> Path:
        folder = HERE / self.name
        folder.mkdir(exist_ok=True)
        return folder

    def open(self) -> "Gguf":
        """Opens the file after comparing its checksum: a reference belongs to exactly one file."""
        with self.file().open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != self.sha256:
            raise SystemExit(f"{self.file().name}: sha256 {found}, expected {self.sha256}")
        return Gguf(self.file())


MODELS = {
    model.name: model
    for model in (
        Model("smollm2-135m-instruct-q4_1", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", "prose.txt"),
        Model("gemma-3-270m-q4_k_m", "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818", "prose.txt"),
        Model("qwen2.5-coder-0.5b-instruct-q4_k_m", "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32", "code.txt"),
    )
}


class Gguf:
    """Metadata and tensors of one GGUF file, read by the published `gguf` package."""

    def __init__(self, path: Path):
        reader = gguf.GGUFReader(path)
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.architecture = self.get("general.architecture")

    def get(self, key, default=None):
        """The value of a metadata key."""
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def hyperparameter(self, key, default=None):
        """The value of a key below the architecture's own prefix."""
        return self.get(f"{self.architecture}.{key}", default)

    def __contains__(self, name):
        return name in self._tensors

    def row_count(self, name):
        return len(self._tensors[name].data)

    def rows(self, name, index=slice(None)):
        """Rows of a tensor (outermost dimension) as float32; a slice or an array of row numbers."""
        tensor = self._tensors[name]
        return gguf.dequantize(tensor.data[index], tensor.tensor_type)
