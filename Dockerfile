# docker build --tag volvox .
# docker build --tag volvox-cuda --build-arg JAX=cuda13 . && docker run --gpus all volvox-cuda volvox doctor
FROM python:3.11-slim

# Empty: JAX for CPUs. cuda13 or cuda12: JAX with the libraries of CUDA; the machine needs NVIDIA's driver alone.
ARG JAX=""

WORKDIR /opt/volvox
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --constraint constraints.txt . ${JAX:+"jax[$JAX]"} \
    && useradd --create-home --uid 1000 volvox

USER 1000
WORKDIR /home/volvox
CMD ["volvox", "doctor"]
