"""The files of the digest's benchmark, and the programs that are measured, each a whole process.

A program gets the file as its argument. The first word that it prints is the seconds of its work,
without its imports.
"""

from __future__ import annotations

# Arguments: path, number of tensors, elements of each. With 0 elements it makes a language model
# instead, with that number of layers.
MAKE_ZIP = """
import sys, torch
path, count, elements = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
def model(layers, width):
    yield "embed.weight", torch.randn(50_257, width)
    for number in range(layers):
        for name, shape in (
            ("attention.qkv", (3 * width, width)),
            ("attention.out", (width, width)),
            ("up", (4 * width, width)),
            ("down", (width, 4 * width)),
        ):
            yield f"layers.{number}.{name}.weight", torch.randn(shape)
            yield f"layers.{number}.{name}.bias", torch.randn(shape[0])
        for name in ("norm_1", "norm_2"):
            yield f"layers.{number}.{name}.weight", torch.randn(width)
            yield f"layers.{number}.{name}.bias", torch.randn(width)
if elements:
    state = {f"layer.{index}.weight": torch.randn(elements // 32, 32) for index in range(count)}
else:
    state = dict(model(count, 1024))
torch.save(state, path)
"""

# Arguments: the zip, and where to write the same tensors in the layout of safetensors.
MAKE_SAFETENSORS = """
import json, sys, torch
state = torch.load(sys.argv[1], weights_only=True, mmap=True)
header, position = {}, 0
for name, tensor in state.items():
    end = position + tensor.nbytes
    header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [position, end]}
    position = end
text = json.dumps(header).encode()
with open(sys.argv[2], "wb") as file:
    file.write(len(text).to_bytes(8, "little") + text)
    for tensor in state.values():
        file.write(tensor.numpy().tobytes())
"""

_BEGIN = """
import sys, time
from pathlib import Path
from gate.checkpoint.digest import digest_state
from gate.checkpoint.formats.formats import open_state
from gate.system.files.files import LocalFiles
"""
OURS = (
    _BEGIN
    + """
begun = time.perf_counter()
with open_state(LocalFiles(), Path(sys.argv[1]), "state", max_bytes=2**40) as content:
    digest_state(content)
print(time.perf_counter() - begun)
memory = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
print(memory["RssAnon"].split()[0], memory["VmHWM"].split()[0])
"""
)

ONE_THREAD = """
import hashlib, os, sys, time
begun = time.perf_counter()
hasher, buffer, position = hashlib.sha256(), memoryview(bytearray(2**20)), 0
with open(sys.argv[1], "rb", buffering=0) as file:
    while count := os.preadv(file.fileno(), [buffer], position):
        hasher.update(buffer[:count])
        position += count
print(time.perf_counter() - begun)
"""

NAIVE = """
import hashlib, sys, time, torch
begun = time.perf_counter()
for name, tensor in torch.load(sys.argv[1], weights_only=True).items():
    hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
print(time.perf_counter() - begun)
"""

MODEL_SIGNING = """
import sys, time, model_signing
begun = time.perf_counter()
model_signing.hashing.Config().use_shard_serialization(shard_size=100_000_000).hash(sys.argv[1])
print(time.perf_counter() - begun)
"""

# Hash chunks of 4 MiB, a thread per core, from a map of the file or read into a buffer of 1 MiB.
_CHUNKS = """
import hashlib, mmap, os, sys, threading, time
CHUNK, PIECE, size = 4 * 2**20, 2**20, os.path.getsize(sys.argv[1])
file = open(sys.argv[1], "rb", buffering=0)
starts = iter(range(0, size, CHUNK))
def work():
    buffer = memoryview(bytearray(PIECE))
    for start in starts:
        hasher = hashlib.sha256()
        for position in range(start, min(start + CHUNK, size), PIECE):
            {take}
        hasher.digest()
begun = time.perf_counter()
whole = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
threads = [threading.Thread(target=work) for _ in os.sched_getaffinity(0)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(time.perf_counter() - begun)
"""
MAPPED = _CHUNKS.replace("{take}", "hasher.update(whole[position : position + PIECE])")
READ = _CHUNKS.replace(
    "{take}",
    "hasher.update(buffer[: os.preadv(file.fileno(), [buffer], position)])",
)

# Parts of the work, each measured alone: a loop over every opcode of the pickle that does nothing
# with it, and a loop that hashes as many blocks of 4 KiB. The third is the interpreter's unpickler
# in C with stubs for all names, which is safe only because this benchmark made the file itself.
SMALL_LIMITS = """
import hashlib, io, pickle, pickletools, struct, sys, time, zipfile
with zipfile.ZipFile(sys.argv[1]) as archive:
    (name,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
    data, count = archive.read(name), sum("/data/" in name for name in archive.namelist())
# behind the opcode: bytes of a fixed length, or those that four bytes tell, or two lines
widths = [0] * 256
for opcode in pickletools.opcodes:
    widths[ord(opcode.code)] = 1 + max(0, opcode.arg.n if opcode.arg else 0)
length = struct.Struct("<I").unpack_from
begun = time.perf_counter()
position, seen = 0, 0
while position < len(data):
    code = data[position]
    position += widths[code]
    if code == 88:
        position += 4 + length(data, position)[0]
    elif code == 99:
        position = data.index(b"\\n", data.index(b"\\n", position) + 1) + 1
    seen += 1
opcodes = time.perf_counter() - begun
block = memoryview(bytes(4096 + 64))
begun = time.perf_counter()
for _ in range(count):
    hashlib.sha256(block).digest()
hashes = time.perf_counter() - begun
class Stubs(pickle.Unpickler):
    def find_class(self, module, name):
        return dict if name == "OrderedDict" else lambda *arguments: arguments
    def persistent_load(self, reference):
        return reference
begun = time.perf_counter()
Stubs(io.BytesIO(data)).load()
print(opcodes + hashes, opcodes, hashes, time.perf_counter() - begun, seen)
"""

# Map both files and compare their bytes on all cores: the least time that any difference can take.
COMPARED = """
import ctypes, mmap, os, sys, threading, time
CHUNK, size = 4 * 2**20, os.path.getsize(sys.argv[1])
compare = ctypes.CDLL(None).memcmp
compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
files = [open(path, "rb", buffering=0) for path in sys.argv[1:3]]
begun = time.perf_counter()
maps = [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) for file in files]
left, right = (ctypes.addressof(ctypes.c_char.from_buffer(one)) for one in maps)
starts = iter(range(0, size, CHUNK))
def work():
    for start in starts:
        compare(left + start, right + start, min(CHUNK, size - start))
threads = [threading.Thread(target=work) for _ in os.sched_getaffinity(0)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(time.perf_counter() - begun)
"""

# Arguments: a file, where to write a copy with some tensors changed slightly, and which tensors:
# "first", "last", "all" or "none".
MAKE_MOVED = """
import sys, torch
state = torch.load(sys.argv[1], weights_only=True)
tensors = list(state.values())
moved = {"first": tensors[:1], "last": tensors[-1:], "all": tensors, "none": []}
for tensor in moved[sys.argv[3]]:
    tensor.mul_(1.0001)
torch.save(state, sys.argv[2])
"""

NAIVE_DIFFERENCE = """
import sys, torch
left, right = (torch.load(path, weights_only=True) for path in sys.argv[1:3])
for name, tensor in left.items():
    gap = (tensor - right[name]).abs()
    print(name, gap.max().item(), int((gap != 0).sum()), file=sys.stderr)
"""

# The figures of docs/diff.md for float32, computed with torch's own operations.
SAME_FIGURES = """
import sys, torch
left, right = (torch.load(path, weights_only=True) for path in sys.argv[1:3])
def ordered(tensor):
    bits = tensor.view(torch.int32).long()
    return torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
for name, one in left.items():
    other = right[name]
    if torch.equal(one, other):
        continue
    one, other = one.flatten(), other.flatten()
    changed = one.view(torch.int32) != other.view(torch.int32)
    distances = (ordered(one) - ordered(other)).abs()
    wide = one.double(), other.double()
    gap, scale = (wide[0] - wide[1]).abs(), torch.maximum(wide[0].abs(), wide[1].abs())
    print(
        name, int(changed.sum()), int(changed.int().argmax()), gap.max().item(),
        (gap / scale).nan_to_num().max().item(),
        (gap.norm() / torch.maximum(wide[0].norm(), wide[1].norm())).item(),
        [distances.kthvalue(max(1, round(len(one) * share))).values.item()
         for share in (0.5, 0.9, 0.99, 1.0)],
        int(one.isnan().sum()), int(other.isnan().sum()),
        int(one.isinf().sum()), int(other.isinf().sum()), file=sys.stderr,
    )
"""
