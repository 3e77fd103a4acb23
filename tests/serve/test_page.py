"""The page of the server, used as a person would: in a real browser, with fake cameras, files, keys and the pointer."""

from __future__ import annotations

import base64
import json
import math
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsers import find_violations, open_browsers
from helpers import QUICK, square, write_squares
from PIL import Image
from serve.running import RunningServer, png, run_server, start_command, write_model

from caprompt.client import Client
from caprompt.serve.page import STATIC

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.slow

WIDTHS = (390, 1440)
VIEWS = ("teach", "try", "manage")
LESSON = 60_000  # milliseconds that a lesson may take
CAMERA = ["--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"]
OPTIONS = [word for name, value in QUICK.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture(scope="module")
def launch() -> Iterator[Callable[..., Any]]:
    """Return a function that starts a browser."""
    with open_browsers() as start:
        yield start


@pytest.fixture(scope="module")
def browser(launch: Callable[..., Any]) -> Any:
    """Return a browser without a camera."""
    return launch()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, backbone: Path) -> Iterator[RunningServer]:
    """Return a server of the model `pets`, which knows red and green; tests do not teach it."""
    folder = write_model(tmp_path_factory.mktemp("page") / "pets", backbone)
    with run_server(folder, backbone=str(backbone)) as running:
        yield running


# -- helpers -------------------------------------------------------------------------------------------------------------------


class Visit:
    """A page in a browser, and what went wrong on it: errors of the console, and requests to other hosts."""

    def __init__(self, browser: Any, url: str, width: int = 1440, scheme: str = "light", **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.page.on("console", lambda each: self.problems.append(each.text) if each.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        own = (url.partition("#")[0], "blob:")
        self.page.on("request", lambda each: None if each.url.startswith(own) else self.problems.append(each.url))
        self.page.goto(url)
        self.page.locator("h1").wait_for()

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()

    def show(self, view: str) -> None:
        link = self.page.get_by_role("navigation").get_by_role("link", name=view)
        link.click()
        sync_api.expect(link).to_have_attribute("aria-current", "page", timeout=15_000)  # the view before has a heading, too
        self.page.locator("h1").wait_for()

    def see(self, text: str | re.Pattern[str], timeout: float = 15_000) -> None:
        self.page.get_by_text(text).first.wait_for(timeout=timeout)

    def add_class(self, name: str) -> Any:
        self.page.locator("#class-name").fill(name)
        self.press("Add")
        return self.page.get_by_role("article", name=name, exact=True)

    def teach(self) -> None:
        button = self.page.get_by_role("button", name="Teach", exact=True)
        sync_api.expect(button).to_be_enabled(timeout=15_000)
        button.click()
        self.page.get_by_role("heading", name=re.compile("^Learned")).wait_for(timeout=LESSON)

    def classify(self, *images: bytes) -> list[str]:
        """Choose images in the view Try; return the answers, the first image's first."""
        files = [{"name": f"{number}.png", "mimeType": "image/png", "buffer": image} for number, image in enumerate(images)]
        self.page.get_by_label("Choose images", exact=True).set_input_files(files)  # not those of a class
        answers = self.page.locator(".answers > li")
        sync_api.expect(answers).to_have_count(len(images), timeout=15_000)
        return list(answers.locator(".label").all_inner_texts())

    def wait_for_live(self, label: str) -> None:
        self.press("Use the camera")
        sync_api.expect(self.page.locator(".live .answer")).to_have_attribute("data-label", label, timeout=20_000)
        self.press("Stop the camera")

    def close(self) -> None:
        self.page.goto("about:blank")  # so that nothing asks a server that ends
        self.context.close()


def get_url(client: Client) -> str:
    return f"http://{client._connection.host}:{client._connection.port}/"


def write_video(path: Path, color: str, count: int = 45) -> Path:
    """Write frames of a colored square, each a little different, as a YUV4MPEG2 video (4:2:0, BT.601)."""
    frames = []
    for seed in range(count):
        frame = np.asarray(Image.fromarray(square(color, seed)).resize((160, 160), Image.Resampling.NEAREST))
        red, green, blue = np.moveaxis(np.pad(frame, ((0, 0), (24, 24), (0, 0)), mode="edge").astype(np.float64), 2, 0)
        luma = 16 + 0.257 * red + 0.504 * green + 0.098 * blue
        chroma = [128 - 0.148 * red - 0.291 * green + 0.439 * blue, 128 + 0.439 * red - 0.368 * green - 0.071 * blue]
        planes = [luma, *(part.reshape(len(part) // 2, 2, -1, 2).mean(axis=(1, 3)) for part in chroma)]
        frames.append(b"FRAME\n" + b"".join(plane.round().clip(0, 255).astype(np.uint8).tobytes() for plane in planes))
    path.write_bytes(b"YUV4MPEG2 W208 H160 F15:1 Ip A1:1 C420\n" + b"".join(frames))
    return path


def drop_folder(visit: Visit, folder: Path) -> None:
    """Drop a folder of the disk on the page, as a file manager does."""
    session = visit.context.new_cdp_session(visit.page)
    data = {"items": [], "files": [str(folder)], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": kind, "x": 700, "y": 200, "data": data})


def hand_over(visit: Visit, event: str, images: Sequence[bytes]) -> None:
    """Paste or drop images on the page."""
    visit.page.evaluate(
        """([kind, texts]) => {
            const transfer = new DataTransfer();
            for (const [index, text] of texts.entries()) {
                const data = Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
                transfer.items.add(new File([data], `${index}.png`, { type: "image/png" }));
            }
            const options = { bubbles: true, cancelable: true };
            document.activeElement.dispatchEvent(kind === "paste"
                ? new ClipboardEvent("paste", { ...options, clipboardData: transfer })
                : new DragEvent("drop", { ...options, dataTransfer: transfer }));
        }""",
        [event, [base64.b64encode(image).decode() for image in images]],
    )


# -- the life of a model -------------------------------------------------------------------------------------------------------


def test_a_model_is_taught_by_cameras_and_folders_tried_and_changed(
    launch: Callable[..., Any], tmp_path: Path, backbone: Path
) -> None:
    arguments = [tmp_path / "pets", "--backbone", backbone, *OPTIONS]
    cameras = {
        color: launch(*CAMERA, f"--use-file-for-fake-video-capture={write_video(tmp_path / f'{color}.y4m', color)}")
        for color in ("red", "blue")
    }
    with start_command(*arguments) as (process, client):
        visit = Visit(cameras["red"], get_url(client))
        card = visit.add_class("red")
        card.get_by_role("button", name="Camera for red").click()
        hold_pointer(visit)
        visit.see(re.compile("nothing to tell it"))
        visit.teach()

        other = Visit(cameras["blue"], get_url(client))
        other.add_class("blue").get_by_role("button", name="Camera for blue").click()
        hold_space(other)
        other.teach()
        other.page.get_by_role("link", name="Try it now").click()
        other.wait_for_live("blue")

        drop_folder(visit, write_squares(tmp_path / "more", ["green"], each=12))
        visit.see("12 images")
        visit.teach()
        visit.show("Try")
        visit.wait_for_live("red")
        assert visit.classify(png("green", 90), png("blue", 90), png("red", 90)) == ["green", "blue", "red"]
        assert visit.page.locator(".lessons").count() == 3

        visit.show("Manage")
        rename(visit, "green", "lime")
        visit.press("Undo the last change")
        visit.see("Renamed green to lime")
        visit.press("Undo")
        visit.page.get_by_role("button", name="Rename green").wait_for()
        rename(visit, "red", "crimson")
        assert visit.problems == other.problems == []
        forget_approximately(visit, "blue")
        assert all("409 (Conflict)" in problem for problem in visit.problems)  # the browser's own note of the refusal
        visit.close()
        other.close()
        stop(process)

    with start_command(*arguments) as (_, client):
        visit = Visit(cameras["red"], get_url(client))
        visit.show("Try")
        visit.wait_for_live("crimson")
        assert visit.classify(png("green", 91), png("red", 91)) == ["green", "crimson"]
        visit.show("Manage")
        assert visit.page.locator(".class-list b").all_inner_texts() == ["crimson", "green"]
        assert visit.problems == []
        visit.close()


def hold_pointer(visit: Visit) -> None:
    """Hold the button of the camera until there are 12 images."""
    button = visit.page.locator(".record")
    sync_api.expect(button).to_be_enabled(timeout=15_000)
    button.hover()
    visit.page.mouse.down()
    visit.see("Recording …")
    sync_api.expect(visit.page.locator(".thumbnails li").nth(11)).to_be_visible(timeout=15_000)
    visit.page.mouse.up()
    visit.see("Hold to record")


def hold_space(visit: Visit) -> None:
    """Hold the space bar on the button of the camera until there are 12 images."""
    button = visit.page.locator(".record")
    sync_api.expect(button).to_be_enabled(timeout=15_000)
    button.focus()
    visit.page.keyboard.down("Space")
    sync_api.expect(visit.page.locator(".thumbnails li").nth(11)).to_be_visible(timeout=15_000)
    visit.page.keyboard.up("Space")
    visit.see("Hold to record")


def rename(visit: Visit, old: str, new: str) -> None:
    visit.press(f"Rename {old}")
    visit.page.get_by_label("New name").fill(new)
    visit.press("Rename")
    visit.page.get_by_role("button", name=f"Rename {new}").wait_for()


def forget_approximately(visit: Visit, name: str) -> None:
    visit.press(f"Forget {name}")
    visit.press("Forget")
    visit.see(f"'{name}' cannot be forgotten exactly")
    visit.press("Remove approximately")
    sync_api.expect(visit.page.get_by_role("button", name=f"Forget {name}")).to_have_count(0, timeout=15_000)


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


# -- teaching ------------------------------------------------------------------------------------------------------------------


def test_problems_are_shown_before_teaching(browser: Any, server: RunningServer, tmp_path: Path) -> None:
    folder = write_squares(tmp_path / "things", ["blue", "yellow"], each=4)
    shutil.copy(folder / "blue" / "000.png", folder / "blue" / "copy.png")
    (folder / "blue" / "broken.png").write_text("no image")
    (folder / "blue" / "notes.txt").write_text("no image either")
    (folder / ".DS_Store").write_text("of the system")
    visit = Visit(browser, server.url)
    visit.page.get_by_label("Choose a folder", exact=True).set_input_files(folder)
    visit.see("2 images left out")
    visit.see("1 file that is no image was left out.")
    visit.page.get_by_text("2 images left out").click()
    problems = sorted(visit.page.locator(".problems li").all_inner_texts(), key=lambda text: not text.startswith("broken"))
    assert re.match(r"broken\.png .*not a readable image", problems[0])
    assert re.match(r"(000|copy)\.png .*\(?'(copy|000)\.png'", problems[1])  # by the names of the person's own files
    assert visit.page.locator(".class-card .count strong").all_inner_texts() == ["4 images", "4 images"]
    assert visit.page.locator(".class-card .count .hint").all_inner_texts() == ["16 more advised"] * 2
    visit.press("Start over")
    assert visit.page.locator(".class-card").count() == 0
    assert visit.problems == []
    visit.context.close()


def test_a_card_is_renamed_and_loses_single_images(browser: Any, server: RunningServer, tmp_path: Path) -> None:
    visit = Visit(browser, server.url)
    card = visit.add_class("bleu")
    *files, last = sorted((write_squares(tmp_path, ["blue"], each=6) / "blue").iterdir())
    card.get_by_label("Choose images of bleu").set_input_files(files)
    visit.see("5 images")
    card.get_by_label("Name of the class").fill("blue")
    card.get_by_label("Choose images of bleu").set_input_files(last)  # while the name is typed
    visit.see("6 images")
    card.get_by_label("Name of the class").press("Enter")
    visit.page.get_by_role("button", name="Remove 002.png").click()
    sync_api.expect(visit.page.get_by_role("button", name="Teach", exact=True)).to_be_enabled(timeout=15_000)
    staged = [upload.count() for model in server.service.collection.models.values() for upload in list_uploads(server, model)]
    assert {"blue": 5} in staged
    assert all("bleu" not in each for each in staged)
    visit.add_class("blue")
    assert visit.page.get_by_role("article", name="blue", exact=True).count() == 1
    visit.press("Remove blue from this lesson")
    visit.context.close()


def list_uploads(server: RunningServer, model: Any) -> list[Any]:
    return list(server.service.uploads(model).uploads.values())


def test_images_are_sent_again_where_the_upload_has_expired(browser: Any, server: RunningServer, tmp_path: Path) -> None:
    visit = Visit(browser, server.url)
    first, *rest = sorted((write_squares(tmp_path, ["blue"], each=6) / "blue").iterdir())
    visit.add_class("blue").get_by_label("Choose images of blue").set_input_files(first)
    sync_api.expect(visit.page.get_by_role("button", name="Teach", exact=True)).to_be_enabled(timeout=15_000)
    with server.client() as client:
        (model,) = server.service.collection.models.values()
        for upload in list_uploads(server, model):
            client._request("DELETE", f"/models/pets/uploads/{upload.identifier}")
    visit.page.get_by_label("Choose images of blue").set_input_files(rest)
    visit.press("Try again")
    sync_api.expect(visit.page.get_by_role("button", name="Teach", exact=True)).to_be_enabled(timeout=15_000)
    assert {"blue": 6} in [upload.count() for upload in list_uploads(server, model)]
    visit.press("Start over")
    visit.context.close()


def test_pasted_and_dropped_images_go_to_a_class(browser: Any, server: RunningServer) -> None:
    visit = Visit(browser, server.url)
    hand_over(visit, "drop", [png("blue", 1), png("blue", 2)])
    card = visit.page.get_by_role("article", name="New class", exact=True)
    sync_api.expect(card.get_by_label("Name of the class")).to_be_focused()
    hand_over(visit, "paste", [png("blue", 3)])
    sync_api.expect(card.locator(".count strong")).to_have_text("3 images")
    assert visit.problems == []
    visit.context.close()


def test_a_lesson_shows_its_progress_and_is_canceled(browser: Any, tmp_path: Path, backbone: Path) -> None:
    folder = write_squares(tmp_path / "things", ["blue", "yellow"], each=8)
    with run_server(tmp_path / "pets", backbone=str(backbone), options={**QUICK, "epochs": 5000}) as slow:
        visit = Visit(browser, slow.url)
        visit.page.get_by_label("Choose a folder", exact=True).set_input_files(folder)
        button = visit.page.get_by_role("button", name="Teach", exact=True)
        sync_api.expect(button).to_be_enabled(timeout=15_000)
        button.click()
        visit.see("Training", timeout=LESSON)
        visit.see(re.compile("about .* left"), timeout=LESSON)
        visit.page.reload()  # the lesson goes on, and is shown again
        visit.see("Training", timeout=LESSON)
        visit.press("Cancel")
        visit.see("The lesson was canceled. The model is as it was.", timeout=LESSON)
        assert visit.problems == []
        visit.close()


def test_a_lesson_that_was_interrupted_is_continued(browser: Any, tmp_path: Path, backbone: Path) -> None:
    settings = {"backbone": str(backbone), "options": {**QUICK, "epochs": 150}}
    with run_server(tmp_path / "pets", **settings) as running:
        visit = Visit(browser, running.url)
        folder = write_squares(tmp_path / "things", ["blue", "yellow"], each=8)
        visit.page.get_by_label("Choose a folder", exact=True).set_input_files(folder)
        sync_api.expect(visit.page.get_by_role("button", name="Teach", exact=True)).to_be_enabled(timeout=15_000)
        visit.press("Teach")
        visit.see("Training", timeout=LESSON)
        visit.close()
    with run_server(tmp_path / "pets", **settings) as running:
        visit = Visit(browser, running.url)
        visit.see("A lesson was interrupted when the server stopped.")
        visit.press("Continue it")
        visit.page.get_by_role("heading", name="Learned: blue and yellow").wait_for(timeout=LESSON)
        assert visit.problems == []
        visit.close()


def test_what_is_mixed_up_is_shown_with_own_pictures(browser: Any, tmp_path: Path, backbone: Path) -> None:
    """Both classes hold the same colors, so some of the images that are set aside are mistaken."""
    folder = tmp_path / "things"
    write_squares(folder, ["blue", "yellow"], each=10)
    for name, start in (("blue", 50), ("yellow", 70)):
        other = write_squares(tmp_path / name, ["yellow" if name == "blue" else "blue"], each=10, start=start)
        for path in sorted(next(other.iterdir()).iterdir()):
            path.rename(folder / name / f"mixed{path.name}")
    with run_server(tmp_path / "pets", backbone=str(backbone)) as running:
        visit = Visit(browser, running.url)
        visit.page.get_by_label("Choose a folder", exact=True).set_input_files(folder)
        visit.teach()
        visit.see("What it still mixes up")
        figure = visit.page.locator(".figure").inner_text()
        right, total = map(int, re.search(r"(\d+) of (\d+) images right", figure).groups())
        assert total == 8
        assert f"{math.floor(100 * right / total + 0.5)}%" in figure.replace("\N{NO-BREAK SPACE}", "")
        pictures = visit.page.locator(".confusions img")
        assert pictures.count() == total - right > 0
        assert pictures.first.evaluate("each => each.naturalWidth") > 0
        assert re.fullmatch(r".*\.png: (blue, taken for yellow|yellow, taken for blue)", pictures.first.get_attribute("alt"))
        assert visit.problems == []
        visit.close()


# -- trying --------------------------------------------------------------------------------------------------------------------


def test_answers_are_those_of_the_model(browser: Any, server: RunningServer) -> None:
    images = [png(color, 40) for color in ("red", "green", "white", "black", "purple", "gray")]
    with server.client() as client:
        predictions = client.predict("pets", images)
    assert {each["unknown"] for each in predictions} == {False, True}
    visit = Visit(browser, f"{server.url}#pets/try")
    assert visit.classify(*images) == ["None of these" if each["unknown"] else each["label"] for each in predictions]
    first = visit.page.locator(".answers > li").first
    shown = float(first.locator(".answer").get_attribute("data-score"))
    assert shown == pytest.approx(predictions[0]["score"], abs=1e-4)
    assert first.locator(".shares li").count() == 2
    visit.context.close()


def test_unreadable_and_pasted_images(browser: Any, server: RunningServer) -> None:
    visit = Visit(browser, f"{server.url}#pets/try")
    hand_over(visit, "paste", [png("red", 41)])
    sync_api.expect(visit.page.locator(".answers .label")).to_have_text(["red"])
    hand_over(visit, "drop", [b"no image"])
    visit.see("not a readable image")
    assert visit.problems == []
    visit.context.close()


def test_missing_camera_is_a_sentence(browser: Any, server: RunningServer) -> None:
    visit = Visit(browser, f"{server.url}#pets/try")
    visit.press("Use the camera")
    visit.see(re.compile("No camera was found|not allowed to use the camera"))
    visit.context.close()


# -- the page itself -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_view_fits_the_width_and_is_accessible(
    browser: Any, server: RunningServer, tmp_path: Path, width: int, scheme: str
) -> None:
    folder = write_squares(tmp_path / "things", ["blue"], each=4)
    (folder / "blue" / "broken.png").write_text("no image")
    visit = Visit(browser, server.url, width, scheme)
    found = {}
    for view in VIEWS:
        visit.show(view.capitalize())
        if view == "teach":
            visit.page.get_by_label("Choose a folder", exact=True).set_input_files(folder)
            visit.see("1 image left out")
        if view == "try":
            visit.classify(png("red", 50), png("green", 50))
        if view == "manage":
            visit.press("Forget red")
            found["dialog"] = find_violations(visit.page)
            visit.press("Cancel")
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width, view
        assert visit.problems == []  # before axe reads the style sheet, which the page does not allow
        found[view] = find_violations(visit.page)
        visit.problems.clear()
    assert found == {"teach": [], "try": [], "manage": [], "dialog": []}
    background = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background))) > 384) == (scheme == "light")
    visit.context.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_a_server_without_models_is_accessible_and_makes_one(browser: Any, tmp_path: Path, backbone: Path, width: int) -> None:
    (tmp_path / "models").mkdir()
    with run_server(tmp_path / "models", many=True, backbone=str(backbone)) as running:
        visit = Visit(browser, running.url, width)
        assert find_violations(visit.page) == []
        visit.problems.clear()
        visit.page.get_by_label("Name of the model").fill("plants")
        visit.press("Create")
        visit.see("What should plants recognize?")
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        assert visit.problems == []
        assert find_violations(visit.page) == []
        visit.show("Try")
        visit.see("plants knows nothing yet")
        assert find_violations(visit.page) == []
        visit.close()


def test_views_are_reached_by_links_and_the_heading_is_focused(browser: Any, server: RunningServer) -> None:
    visit = Visit(browser, server.url)
    visit.page.keyboard.press("Tab")
    assert visit.page.evaluate("document.activeElement.textContent") == "Skip to the content"
    for view in ("Try", "Manage", "Teach"):
        visit.show(view)
        sync_api.expect(visit.page.locator("h1")).to_be_focused()
        assert visit.page.title() == f"{view} · pets"
        assert visit.page.locator("nav [aria-current=page]").inner_text() == view
    visit.page.go_back()
    sync_api.expect(visit.page.locator("h1")).to_have_text("Manage pets")
    assert visit.page.get_by_role("combobox").count() == 0  # a single model needs no choice
    visit.context.close()


def test_the_theme_is_chosen_and_kept(browser: Any, server: RunningServer) -> None:
    visit = Visit(browser, server.url)
    read = "getComputedStyle(document.body).backgroundColor"
    light = visit.page.evaluate(read)
    visit.press("Dark theme")
    dark = visit.page.evaluate(read)
    assert dark != light
    visit.page.reload()
    visit.page.locator("h1").wait_for()
    assert visit.page.evaluate(read) == dark
    assert visit.page.get_by_role("button", name="Dark theme").get_attribute("aria-pressed") == "true"
    visit.context.close()


def test_the_page_works_behind_a_token(browser: Any, tmp_path: Path, backbone: Path) -> None:
    folder = write_squares(tmp_path / "things", ["blue", "yellow"], each=4)
    with run_server(tmp_path / "pets", backbone=str(backbone), token="open sesame") as running:
        page = browser.new_context().new_page()
        page.goto(f"{running.url}?token=open%20sesame")
        page.get_by_label("Choose a folder", exact=True).set_input_files(folder)
        sync_api.expect(page.get_by_role("button", name="Teach", exact=True)).to_be_enabled(timeout=15_000)
        page.get_by_role("button", name="Teach", exact=True).click()
        page.get_by_role("heading", name="Learned: blue and yellow").wait_for(timeout=LESSON)
        assert "sesame" not in page.url
        page.goto("about:blank")
        page.context.close()


def test_every_text_is_in_one_file(browser: Any, server: RunningServer) -> None:
    texts = json.loads((STATIC / "texts.en.json").read_text(encoding="utf-8"))
    blank = {key: dict.fromkeys(text, "·") if isinstance(text, dict) else "·" for key, text in texts.items()}
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.route("**/texts.en.json", lambda route: route.fulfill(json=blank))
    now = page.evaluate("new Intl.DateTimeFormat('en', { dateStyle: 'medium', timeStyle: 'short' }).format()")
    formatted = {*re.findall(r"[^\W\d_]+", now), "AM", "PM", "byte", "bytes", "kB", "MB", "second", "seconds"}  # by the browser
    for view in VIEWS:
        page.goto(f"{server.url}#pets/{view}")
        page.reload()
        page.locator("h1").wait_for()
        kept = page.locator(".kept li").all_inner_texts()  # the library's own sentences
        seen = page.locator("body").inner_text()
        for sentence in kept:
            seen = seen.replace(sentence, "")
        labels = page.locator("[aria-label]").evaluate_all("all => all.map((each) => each.getAttribute('aria-label')).join(' ')")
        words = set(re.findall(r"[^\W\d_]{2,}", f"{seen} {labels}"))
        assert words - {"pets", "red", "green"} - formatted == set(), view
    context.close()


def test_every_text_is_used_and_none_is_missing() -> None:
    texts = json.loads((STATIC / "texts.en.json").read_text(encoding="utf-8"))
    code = "".join(path.read_text(encoding="utf-8") for path in sorted(STATIC.glob("*.js")))
    used = set(re.findall(r'"([a-z]+(?:\.[A-Za-z]+)?)"', code))
    patterns = [re.sub(r"\\\$\\\{[^}]*\\\}", ".+", re.escape(each)) for each in re.findall(r"`([a-z]+\.\$\{[^`]*)`", code)]
    assert [key for key in texts if key not in used and not any(re.fullmatch(each, key) for each in patterns)] == []
    assert [key for key in re.findall(r'\bt\("([^"]+)"', code) if key not in texts] == []
