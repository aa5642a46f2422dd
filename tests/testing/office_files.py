"""Word documents and EPUB books, whole and hostile, made by hand."""

import io
import zipfile
from collections.abc import Mapping

_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_TYPES = """<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">
<Default Extension="xml" ContentType="application/xml"/>
<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>
<Override PartName="/word/document.xml"
 ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>"""
_RELATIONS = """<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">
<Relationship Id="r1" Target="word/document.xml"
 Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"/></Relationships>"""


def packed(files: Mapping[str, str | bytes]) -> bytes:
    """An archive of these files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return out.getvalue()


def docx(*paragraphs: str) -> bytes:
    """A Word document; a paragraph that begins with # is a heading."""

    def paragraph(text: str) -> str:
        style = '<w:pPr><w:pStyle w:val="Heading1"/></w:pPr>' if text.startswith("# ") else ""
        return f"<w:p>{style}<w:r><w:t>{text.removeprefix('# ')}</w:t></w:r></w:p>"

    body = "".join(map(paragraph, paragraphs))
    styles = (
        f'<w:styles xmlns:w="{_WORD}"><w:style w:type="paragraph" w:styleId="Heading1"><w:name w:val="heading 1"/>'
        "</w:style></w:styles>"
    )
    return packed(
        {
            "[Content_Types].xml": _TYPES,
            "_rels/.rels": _RELATIONS,
            "word/document.xml": f'<w:document xmlns:w="{_WORD}"><w:body>{body}</w:body></w:document>',
            "word/styles.xml": styles,
            "word/_rels/document.xml.rels": (
                '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship '
                'Id="s1" Target="styles.xml" '
                'Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/styles"/></Relationships>'
            ),
        }
    )


def epub(*chapters: str, more: Mapping[str, str | bytes] | None = None) -> bytes:
    """A book whose pages stand in the archive in another order than in the spine."""
    items = "".join(f'<item id="c{n}" href="text/{n}%20.xhtml"/>' for n in reversed(range(len(chapters))))
    spine = "".join(f'<itemref idref="c{n}"/>' for n in range(len(chapters)))
    pages = {f"book/text/{n} .xhtml": f"<html><body>{text}</body></html>" for n, text in enumerate(chapters)}
    return packed(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": (
                '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
                '<rootfile full-path="book/a.opf"/></rootfiles></container>'
            ),
            "book/a.opf": (
                f'<package xmlns="http://www.idpf.org/2007/opf"><manifest>{items}</manifest>'
                f"<spine>{spine}</spine></package>"
            ),
            **dict(reversed(pages.items())),
            **(more or {}),
        }
    )
