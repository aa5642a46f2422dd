"""The page behind a login, in a real browser: in and out, a password, who is connected, guests, what is the owner's."""

import re

import pytest
from playwright.sync_api import Browser, expect

from hierchat.access.login import WRONG
from hierchat.access.login_sessions import GUEST_LOGIN, LoginSessions, Members
from tests.testing import browser as driving
from tests.testing.browser import PATIENCE_MS
from tests.testing.fake_service import FakeService

pytestmark = pytest.mark.browser
ANN, BEN = ("ann", "the password of ann"), ("ben", "the password of ben")
NEW = "another long password"


def test_in_and_out_and_what_is_unsent_and_unfinished_stays(chromium: Browser, fresh: FakeService) -> None:
    with driving.serving(fresh, ANN) as address, driving.visiting(chromium, address) as visitor:
        page, user = visitor.page, fresh.store.users.ensure("ann")
        name, password = page.get_by_label("Name"), page.get_by_label("Password")
        page.goto(f"{address}?c=1")
        expect(page).to_have_url(f"{address}login?c=1")
        expect(name).to_be_focused()
        visitor.log_in("ann", "wrong")
        expect(page.get_by_role("alert")).to_have_text(WRONG)
        expect(name).to_have_value("ann")
        expect(password).to_be_focused()
        page.keyboard.type(ANN[1])
        with page.expect_navigation():
            page.keyboard.press("Enter")
        visitor.open()
        visitor.ask("Mine")
        assert [c.title for c in fresh.store.chats.find(user)] == ["Mine"]
        assert fresh.store.chats.find(fresh.user) == []

        # Stop and changes of another tab come by routes of their own.
        fresh.script.hold()
        visitor.begin("A long story.")
        visitor.stop.click()
        visitor.idle()
        fresh.store.chats.create(user, "From elsewhere")
        fresh.changes.notify(user)
        expect(page.locator("#hc-list")).to_contain_text("From elsewhere", timeout=PATIENCE_MS)

        # Log-out in another tab hides the reply, which goes on.
        visitor.begin("A longer story.")
        visitor.box.fill("Not lost")
        page.context.request.post(f"{address}logout")
        expect(page).to_have_url(re.compile(f"{address}login"))
        (reply,) = fresh.in_progress.all_of(user)
        assert not reply.ended.is_set()
        fresh.script.release()
        visitor.log_in(*ANN)
        expect(visitor.box).to_have_value("Not lost", timeout=PATIENCE_MS)
        visitor.box.press("Enter")
        expect(visitor.questions.last).to_contain_text("Not lost")
        visitor.idle()

        visitor.open("?view=settings")
        expect(page.locator("#hc-password")).to_contain_text("You are logged in as ann.")
        page.get_by_role("link", name="Change the password").click()
        expect(page.get_by_label("Current password")).to_be_focused()
        page.get_by_label("Current password").fill(ANN[1])
        page.get_by_label("New password, at least 8 characters").fill(NEW)
        page.get_by_label("New password again").fill(NEW)
        visitor.press("Change password")
        expect(page.get_by_role("status")).to_contain_text("Your password was changed.")
        page.get_by_role("link", name="Back to the settings").click()
        visitor.press("Log out")
        expect(page).to_have_url(f"{address}login")
        assert visitor.foreign == []


def test_a_guest_is_told_that_their_chats_go_before_they_do(chromium: Browser, fresh: FakeService) -> None:
    log_ins = LoginSessions(Members(fresh.store, "the guest password"))
    with (
        driving.serving(fresh, log_ins=log_ins) as address,
        driving.visiting(chromium, address) as visitor,
    ):
        page, dialog = visitor.page, visitor.page.get_by_role("dialog")
        page.goto(address)
        expect(page.locator("main")).to_contain_text("What you write is deleted when you log out")
        visitor.log_in(GUEST_LOGIN, "the guest password")
        visitor.open()
        visitor.ask("Who is there?")
        expect(page.locator("#hc-log-out")).to_contain_text("guest")
        visitor.press("Log out")
        expect(dialog).to_contain_text("all your chats will be deleted")
        assert len(log_ins.connected()) == 1
        dialog.get_by_role("button", name="Log out").click()
        expect(page).to_have_url(f"{address}login")
        visitor.until(lambda: [*fresh.store.users.ids()] == ["local"])  # whom the fake service begins with


def test_two_users_at_once_see_nothing_of_each_other_nor_the_other_what_is_the_owner_s(
    chromium: Browser, fresh: FakeService
) -> None:
    log_ins = driving.log_ins_of(fresh.store, ANN, BEN)
    with (
        driving.serving(fresh, log_ins=log_ins) as address,
        driving.visiting(chromium, address) as ann,
        driving.visiting(chromium, address) as ben,
    ):
        for visitor, account in ((ann, ANN), (ben, BEN)):
            visitor.page.goto(address)
            visitor.log_in(*account)
            visitor.open()
        fresh.script.hold()
        ann.begin("A secret of Ann's.")
        ben.send("A secret of Ben's.")
        expect(ben.live).to_contain_text("Waiting for one other reply")
        ann.stop.click()
        ann.idle()
        expect(ben.stop).to_be_visible()
        ben.stop.click()
        ben.idle()
        for visitor, mine, other, name in ((ann, "Ann's", "Ben's", "ann"), (ben, "Ben's", "Ann's", "ben")):
            expect(visitor.page.locator("#hc-list")).to_contain_text(mine)
            told = visitor.page.content()
            assert mine in told
            assert other not in told
            (chat,) = fresh.store.chats.find(fresh.store.users.ensure(name))
            visitor.open(f"?c={chat.id}")
            assert other not in visitor.page.content()
        ben.open("?view=settings")
        expect(ben.page.locator("#hc-texts li")).to_have_count(0)  # nor is it told what there is
        expect(ben.page.locator("#hc-texts, #hc-texts-form").get_by_role("button")).to_have_count(0)
        # What presses the buttons that are not there is refused.
        ben.page.evaluate(
            """() => {
                const known = document.querySelector('[data-act]').dataset.key;
                const button = Object.assign(document.createElement('button'), { textContent: 'Look' });
                Object.assign(button.dataset, { act: 'hc_texts_add', key: known, text: '/etc' });
                document.querySelector('#hc-texts').append(button);
                button.click();
            }"""
        )
        expect(ben.page.locator("#hc-texts-said [role=alert]")).to_contain_text("Only the owner")
        assert fresh.texts.asked == []
        ann.open("?view=settings")
        expect(ann.page.locator("#hc-texts li").filter(has_text="notes")).to_be_visible()
        sessions = ann.page.locator("#hc-connected li")
        expect(sessions).to_have_count(2)
        expect(sessions.filter(has_text="ann (owner)")).to_contain_text("here now · this machine")
        ann.page.get_by_role("button", name="End session: ben").click()
        expect(ann.live).to_contain_text("The session of ben has ended.")
        expect(sessions).to_have_count(1)
        assert ben.page.request.get(f"{address}config").status == 401
        # By itself: and a page that closes while it goes elsewhere may never be closed.
        expect(ben.page.get_by_role("button", name="Log in")).to_be_visible()
        assert ann.foreign == ben.foreign == []
