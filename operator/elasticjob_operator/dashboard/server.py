"""The web server of the dashboard: routes, the guard before each of them, and the streams of changes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import resources
from typing import Final
from urllib.parse import parse_qsl

from aiohttp import web

from elasticjob_operator import numerals
from elasticjob_operator.client import Client, ClientError, ForbiddenError, InvalidError, Job
from elasticjob_operator.client.model import summarize
from elasticjob_operator.dashboard import guard, jobpage, listpage, shell
from elasticjob_operator.dashboard.board import Board
from elasticjob_operator.dashboard.looking import MOST_LOOKS, MOST_LOOKS_OF_ONE, Looker
from elasticjob_operator.dashboard.places import Places, viewer
from elasticjob_operator.dashboard.streams import Streams, number
from elasticjob_operator.html_report import STYLE
from elasticjob_operator.kube.fair_queue import Slots
from elasticjob_operator.rest import http_log
from elasticjob_operator.text import printable

_FIRST_LIST: Final = 15.0  # the first page waits as long for the jobs
_RETRY: Final = 2.0
_FORM_BYTES: Final = 16 * 1024
MOST_CONNECTIONS: Final = 256  # more than the streams and what browsers keep; each takes an open file
SILENT_SECONDS: Final = 75.0  # longer than proxies keep a connection without a request
FORM_SECONDS: Final = 10.0
MOST_PAGES: Final = 64  # of jobs that are made at a time: each reads the cluster ...
MOST_PAGES_OF_ONE: Final = 16  # ... and of one viewer
_ASSETS: Final = {"dashboard.js": "text/javascript", "icon.svg": "image/svg+xml"}


class Dashboard:
    """Serves the jobs of one namespace, or of all, with the client's rights."""

    def __init__(self, client: Client, *, all_namespaces: bool = False, access: guard.Access | None = None) -> None:
        self.keys = guard.Keys()
        self.board = Board()
        self._client = client
        self._all_namespaces = all_namespaces
        self._access = access or guard.Access()
        self._port = 0
        self._pages = Places(MOST_PAGES, MOST_PAGES_OF_ONE)
        self._turns = Slots(MOST_LOOKS, share=MOST_LOOKS_OF_ONE)  # of looks
        self._busy: set[web.RequestHandler] = set()  # connections whose request is being answered
        folder = resources.files(__package__) / "assets"
        self._assets = {name: ((folder / name).read_bytes(), kind) for name, kind in _ASSETS.items()}
        style = STYLE + (folder / "dashboard.css").read_text()
        self._assets["style.css"] = (style.encode(), "text/css")

    @contextlib.asynccontextmanager
    async def serve(self, host: str, port: int) -> AsyncIterator[str]:
        """Serve while the context lasts; yields the address with its token. Raises OSError for a port in use."""
        streams = Streams(self._client, self.board, self._find, self._regions, self._turns)
        app = web.Application(middlewares=[self._guard], client_max_size=_FORM_BYTES)
        app.add_routes(
            [
                web.get("/", self._list),
                web.get("/healthz", self._health),
                web.get("/events", streams.send_jobs),
                web.get("/assets/{name}", self._asset),
                web.get("/jobs/{namespace}/{name}", self._job),
                web.get("/jobs/{namespace}/{name}/events", streams.send_job),
                web.get("/jobs/{namespace}/{name}/logs", streams.send_logs),
                web.post("/jobs/{namespace}/{name}/{action:scale|suspend|resume}", self._act),
            ]
        )
        logger = http_log.quiet_logger(f"{__name__}.http")
        runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=0.1,
            keepalive_timeout=SILENT_SECONDS,
            handler_cancellation=True,
            logger=logger,
        )
        await runner.setup()
        assert runner.server is not None
        accept = functools.partial(self._accept, runner.server)
        follower = asyncio.create_task(self._follow())
        try:
            listener = await asyncio.get_running_loop().create_server(accept, host, port)
            with contextlib.closing(listener):
                self._port = listener.sockets[0].getsockname()[1]
                if self._access.behind_proxy:
                    yield f"http://{host}:{self._port}/"
                else:
                    yield f"http://{min(self._access.hosts)}:{self._port}/?token={self.keys.token}"
        finally:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)
            await runner.cleanup()

    async def _follow(self) -> None:
        """Keeps the board up to date, whatever happens to the API server or to our rights meanwhile."""
        while True:
            changes = self._client.watch(
                all_namespaces=self._all_namespaces,
                seen=self.board.known,
                listed=self.board.set_listed,
                keep=summarize,
            )
            try:
                async for change in changes:
                    self.board.apply(change, time.time())
            except ClientError as error:
                hint = " -n NAMESPACE shows one namespace." if self._all_namespaces else ""
                self.board.set_problem(str(error) + (hint if isinstance(error, ForbiddenError) else ""))
            except Exception as error:  # a page that is told is better than one that silently stays as it is
                self.board.set_problem(f"The jobs could not be read ({type(error).__name__}: {error}). Trying again.")
            finally:
                await changes.aclose()
            await asyncio.sleep(_RETRY)

    def _accept(self, server: web.Server) -> web.RequestHandler:
        """A connection more; where that is too many, the oldest ones without a request make room."""
        there = {one: link for one in server.connections if (link := one.transport) and not link.is_closing()}
        idle = [link for one, link in there.items() if one not in self._busy]
        for link in idle[: max(0, len(there) + 1 - MOST_CONNECTIONS)]:
            link.abort()
        return server()

    # --- who may ask -------------------------------------------------------------------------------------------

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.path == "/healthz":
            return await handler(request)
        self._busy.add(request.protocol)
        try:
            refusal = guard.judge(self._read_asked(request), self.keys, self._access)
            if refusal is None and request.method == "POST":
                refusal = guard.judge_form((await _read_form(request)).get("key", ""), self.keys)
            if refusal is not None:
                return self._answer(request, refusal.status, "Not allowed", refusal.message)
            response = await handler(request)
        except web.HTTPException as error:
            return self._answer(request, error.status, error.reason or "Not possible", error.text or "")
        finally:
            self._busy.discard(request.protocol)
        if not response.prepared:
            response.headers.update(guard.HEADERS)
        return response

    def _read_asked(self, request: web.Request) -> guard.Asked:
        return guard.Asked(
            method=request.method,
            host=request.host,
            origin=request.headers.get("Origin", ""),
            session=request.cookies.get(guard.cookie_name(self._port), ""),
            token=request.query.get("token", "") if request.path == "/" else "",
        )

    def _answer(self, request: web.Request, status: int, title: str, message: str) -> web.Response:
        if "application/json" in request.headers.get("Accept", ""):
            return web.json_response({"message": printable(message)}, status=status, headers=guard.HEADERS)
        return self._html(shell.build_message(title, message, back=_back(request)), status)

    def _html(self, text: str, status: int = 200) -> web.Response:
        # A job's name or log may hold what UTF-8 cannot encode.
        data = text.encode("utf-8", "replace")
        return web.Response(body=data, status=status, content_type="text/html", charset="utf-8", headers=guard.HEADERS)

    # --- pages -------------------------------------------------------------------------------------------------

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _asset(self, request: web.Request) -> web.Response:
        found = self._assets.get(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound(text="There is no such file.")
        return web.Response(body=found[0], content_type=found[1], charset="utf-8")

    async def _list(self, request: web.Request) -> web.Response:
        if "token" in request.query:
            return self._enter()
        await self._until_listed()
        query, page = request.query.get("q", ""), number(request, "page", 1)
        view = self.board.view(query, page)
        main = listpage.build_list(view, query, self.board.problem)
        stream = f"/events?{request.query_string}"
        return self._html(shell.build_page("ElasticJobs", main, stream=stream))

    def _enter(self) -> web.Response:
        response = self._html(shell.build_entry("/"))
        name = guard.cookie_name(self._port)
        response.set_cookie(name, self.keys.session, httponly=True, samesite="Strict", path="/")
        return response

    async def _job(self, request: web.Request) -> web.Response:
        with self._pages.take(request):
            await self._until_listed()
            job = self._find(request)
            looker = Looker(self._client, job.namespace, job.name, self._turns, viewer(request), self.board)
            await looker.look()
        regions = self._regions(request, job, looker.seen)
        main = jobpage.build_job(job.namespace, job.name, regions, rank=request.query.get("rank", ""))
        stream = f"{request.rel_url.raw_path}/events?{request.query_string}"
        return self._html(shell.build_page(f"{job.name}: ElasticJob", main, stream=stream))

    def _regions(self, request: web.Request, job: Job, seen: jobpage.Seen) -> dict[str, str]:
        if job.is_short and seen.job is not None and seen.job.uid == job.uid:
            job = seen.job
        scaling = job.status.scaling
        return jobpage.build_regions(
            job,
            seen,
            self.board.samples(job.uid),
            self.board.in_pool(scaling.pool) if scaling is not None and scaling.pool else (),
            now=time.time(),
            form_key="" if self._access.read_only else self.keys.form,
            members_page=number(request, "members", 1),
            problem=self.board.problem,
        )

    def _find(self, request: web.Request) -> Job:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        job = self.board.find(namespace, name)
        if job is None:
            raise web.HTTPNotFound(text=f"There is no ElasticJob {name} in namespace {namespace} that you may see.")
        return job

    async def _until_listed(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_LIST):
                while not self.board.is_complete and not self.board.problem:
                    await self.board.wait(self.board.version, _FIRST_LIST)

    # --- changes of jobs ---------------------------------------------------------------------------------------

    async def _act(self, request: web.Request) -> web.Response:
        job = self._find(request)
        form = await _read_form(request)
        try:
            said = await self._change(job, request.match_info["action"], form.get("replicas", ""))
        except ClientError as error:
            return self._answer(request, 400, "Not changed", str(error))
        return self._answer(request, 200, "Changed", said)

    async def _change(self, job: Job, action: str, replicas: str) -> str:
        if action == "suspend":
            await self._client.suspend(job.name, job.namespace)
            return f"{job.name} is being suspended: it saves a checkpoint and releases its pods."
        if action == "resume":
            await self._client.resume(job.name, job.namespace)
            return f"{job.name} is being resumed."
        if replicas == "auto":
            await self._client.release(job.name, job.namespace)
            return f"{job.name} is scaled by its pool again."
        wanted = numerals.read_count(replicas, 10**8 - 1, least=1)
        if wanted is None:
            raise InvalidError("replicas: must be a number of pods from 1 on")
        await self._client.scale(job.name, wanted, job.namespace)
        return f"{job.name} is scaled to {wanted}."


async def _read_form(request: web.Request) -> dict[str, str]:
    """The fields of one of our forms; of none for a body that is something else."""
    try:
        async with asyncio.timeout(FORM_SECONDS):
            return dict(parse_qsl((await request.read()).decode(errors="replace")))
    except TimeoutError:
        raise web.HTTPRequestTimeout(text="The form did not arrive.") from None
    except web.RequestPayloadError:  # it is not compressed as its header says
        return {}


def _back(request: web.Request) -> str:
    """Where a page that says one thing leads: to the job that it is about."""
    info = request.match_info
    return listpage.job_path(info["namespace"], info["name"]) if request.method == "POST" and "action" in info else "/"
