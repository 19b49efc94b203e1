"""Bytes in which a proxy and the server could see different requests, and requests that all see alike."""

from __future__ import annotations

SECOND = b"GET /api/v1/health HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /api/v1/tokens HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
GET = b"GET /api/v1/health HTTP/1.1\r\n"
LAST = GET + b"Host: x\r\nConnection: close\r\n\r\n"

AMBIGUOUS = {
    "a length and chunks": POST + b"Content-Length: 4\r\n" + CHUNKED + b"\r\n0\r\n\r\n" + SECOND,
    "chunks and a length": POST + CHUNKED + b"Content-Length: 500\r\n\r\n0\r\n\r\n" + SECOND,
    "two lengths": POST + b"Content-Length: 0\r\nContent-Length: 44\r\n\r\n" + SECOND,
    "a list of lengths": POST + b"Content-Length: 0, 44\r\n\r\n" + SECOND,
    "a length with a sign": POST + b"Content-Length: +0\r\n\r\n" + SECOND,
    "a length in hexadecimal": POST + b"Content-Length: 0x0\r\n\r\n" + SECOND,
    "chunks twice": POST + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n" + SECOND,
    "chunks that are not the last coding": POST
    + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"
    + SECOND,
    "another coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SECOND,
    "a coding after a tab": POST + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + SECOND,
    "chunks in HTTP/1.0": POST.replace(b"1.1", b"1.0") + CHUNKED + b"\r\n0\r\n\r\n" + SECOND,
    "a space before the colon": POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + SECOND,
    "a folded line": POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + SECOND,
    "a line folded by a tab": GET + b"Host: x\r\nX-A: b\r\n\tContent-Length: 4\r\n\r\n" + SECOND,
    "lines that end with LF": GET.replace(b"\r\n", b"\n") + b"Host: x\n\n" + SECOND,
    "one line that ends with LF": GET + b"Host: x\r\nX-A: b\nX-C: d\r\n\r\n" + SECOND,
    "headers that end with LF": GET + b"Host: x\r\n\n" + SECOND,
    "a CR in a header": GET + b"Host: x\r\nX-A: b\rX-C: d\r\n\r\n" + SECOND,
    "a NUL in a header": GET + b"Host: x\r\nX-A: b\0c\r\n\r\n" + SECOND,
    "a size of a chunk that is none": POST + CHUNKED + b"\r\nZZ\r\n\r\n" + SECOND,
    "a size with a sign": POST + CHUNKED + b"\r\n-1\r\n\r\n" + SECOND,
    "a size of a chunk without end": POST + CHUNKED + b"\r\n" + b"0" * 30 + b"\r\n\r\n" + SECOND,
    "a chunk longer than it says": POST + CHUNKED + b"\r\n1\r\nxx\r\n0\r\n\r\n" + SECOND,
    "a size that ends with LF": POST + CHUNKED + b"\r\n0\n\n" + SECOND,
    "no host": GET + b"\r\n" + SECOND,
    "two hosts": GET + b"Host: x\r\nHost: y\r\n\r\n" + SECOND,
    "no version": b"GET /api/v1/health\r\nHost: x\r\n\r\n" + SECOND,
    "two spaces": b"GET  /api/v1/health HTTP/1.1\r\nHost: x\r\n\r\n" + SECOND,
    "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SECOND,
    "a header without end": GET + b"Host: x\r\nX-A: " + b"b" * 200_000 + b"\r\n\r\n" + SECOND,
    "headers without end": GET + b"Host: x\r\n" + b"X-A: b\r\n" * 30_000 + b"\r\n" + SECOND,
}
