# EMTC Lab as an image; the guide's page "Sharing and serving" says how it is used.
#   docker build -t emtc-lab .                                without CUDA
#   docker build -t emtc-lab:gpu --build-arg DEVICE=gpu .     torch and faiss for CUDA 12
ARG DEVICE=cpu

FROM python:3.11-slim-bookworm AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY .streamlit/config.toml .streamlit/config.toml
COPY app app
COPY emtc_core emtc_core
COPY pages pages
COPY storage storage
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim-bookworm AS base
RUN useradd --create-home --uid 1000 emtc \
    && install --directory --owner=emtc --group=emtc --mode=0700 /data /files
COPY --from=wheel /wheels /wheels

FROM base AS cpu
# Torch first, in the range of pyproject.toml: a newer one would be replaced by pip's own, which brings CUDA 13. A lab's mirror or folder of wheels is named by --build-arg.
ARG TORCH="--index-url https://download.pytorch.org/whl/cpu"
RUN pip install --no-cache-dir $TORCH "torch>=2.11,<2.14" \
    && pip install --no-cache-dir "$(echo /wheels/*.whl)[alerts,login,postgres]"

FROM base AS gpu
# CUDA 12 for torch and faiss. Blackwell needs --build-arg TORCH="--index-url https://download.pytorch.org/whl/cu128 torch==2.11.*".
ARG TORCH="--index-url https://download.pytorch.org/whl/cu126"
RUN pip install --no-cache-dir $TORCH "torch>=2.11,<2.14" \
    && pip install --no-cache-dir "$(echo /wheels/*.whl)[alerts,gpu,login,postgres]"

FROM ${DEVICE}
USER emtc
WORKDIR /home/emtc
RUN python -m app.warmup --all
ENV EMTC_DB=sqlite:////data/emtc.db \
    EMTC_FILES=/files \
    STREAMLIT_SERVER_ADDRESS=0.0.0.0 \
    STREAMLIT_SERVER_HEADLESS=true
VOLUME ["/data", "/files"]
EXPOSE 8501
CMD ["emtc", "app", "--port", "8501"]
