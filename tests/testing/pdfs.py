"""PDF files, whole and hostile, made by hand."""

import io
import zlib
from collections.abc import Sequence

from pypdf import PdfReader, PdfWriter


def pdf(*pages: str) -> bytes:
    """A page for each text, in lines."""
    return made([page(text.split("\n")) for text in pages])


def page(lines: Sequence[str]) -> bytes:
    """What a page draws."""
    shown = " T* ".join(f"({line}) Tj" for line in lines)
    return f"BT /F1 12 Tf 14 TL 72 720 Td {shown} ET".encode("latin-1")


def made(contents: Sequence[bytes], head: str = "", kids: str | None = None) -> bytes:
    """A file with these streams as its pages; `head`: of each stream."""
    first = 4
    numbers = range(first, first + 2 * len(contents), 2)
    kids = kids or " ".join(f"{number} 0 R" for number in numbers)
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(contents)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, content in zip(numbers, contents, strict=True):
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {number + 1} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>".encode()
        )
        objects.append(f"<< /Length {len(content)} {head} >>\nstream\n".encode() + content + b"\nendstream")
    out = io.BytesIO(b"%PDF-1.7\n")
    out.seek(0, io.SEEK_END)
    places = []
    for number, body in enumerate(objects, 1):
        places.append(out.tell())
        out.write(f"{number} 0 obj\n".encode() + body + b"\nendobj\n")
    table = out.tell()
    rows = "".join(f"{place:010} 00000 n \n" for place in places)
    out.write(f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{rows}".encode())
    out.write(f"trailer << /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{table}\n%%EOF\n".encode())
    return out.getvalue()


def encrypted(raw: bytes, password: str) -> bytes:
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(raw)))
    writer.encrypt(user_password=password, owner_password="owner", algorithm="RC4-128")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def bomb(times: int = 2) -> bytes:
    """A few kilobytes that unpack to gigabytes."""
    packed = b"\0" * 200_000_000
    for _ in range(times):
        packed = zlib.compress(packed, 1)
    return made([packed], "/Filter [" + "/FlateDecode " * times + "]")
