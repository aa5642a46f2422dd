# docker compose up, or: docker build -t hierchat . && docker run -p 127.0.0.1:7860:7860 -v hierchat:/data hierchat
FROM python:3.11-slim

# gcc: Triton compiles its launcher with it, on a GPU alone
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG SYSTEM=""
RUN if [ -n "$SYSTEM" ]; then \
      apt-get update && apt-get install -y --no-install-recommends $SYSTEM && rm -rf /var/lib/apt/lists/*; \
    fi
# A layer of its own: it is the largest, and the program changes more often
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" torch==2.13.0
COPY pyproject.toml README.md LICENSE models.yaml hatch_build.py requirements.lock /src/
COPY assets /src/assets
COPY hierchat /src/hierchat
RUN pip install --no-cache-dir /src && rm -r /src

RUN useradd --create-home --uid 1000 hierchat && install -d -o hierchat -g hierchat /data /models
USER hierchat
ENV HIERCHAT_DATA=/data HIERCHAT_CONFIG=/data/config HIERCHAT_CACHE=/models PYTHONUNBUFFERED=1
VOLUME ["/data", "/models"]
EXPOSE 7860
# The manifest answers without a login, as soon as the page does
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s CMD \
  ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:7860/manifest.json', timeout=4)"]
# Others than this container's own address need a login: the log has the guest password
ENTRYPOINT ["hierchat"]
CMD ["serve", "--host", "0.0.0.0"]
