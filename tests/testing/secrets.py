"""A secret word of one user in every place of the store that can hold text, and all rows that are theirs."""

from dataclasses import dataclass
from typing import Any

from hierchat.store import Store
from hierchat.store.documents import Documents
from hierchat.store.records import (
    Attachment,
    ChatSettings,
    Document,
    NewMessage,
    NewTurn,
    Passage,
    Project,
    ToolCall,
)

SECRET = "xylophonist"


@dataclass
class Secrets:
    """What `fill` made of a user's: ids of all kinds."""

    user: int
    ids: dict[str, int]


def fill(store: Store, name: str, word: str = SECRET) -> Secrets:
    """A chat of that user with the word in every place that can hold text, another that is hidden, an incognito one."""
    user = store.users.ensure(name)
    store.users.set_notes(user, f"I am a {word}")
    project = store.projects.save(user, Project(0, f"The {word}'s", f"Think of a {word}"))
    chat = store.chats.create(user, project_id=project)
    file = Attachment(f"{word}.txt", 20, f"about a {word}")
    asked = store.messages.add(user, chat, NewMessage(None, f"Who is the {word}?", files=[file]))
    reply = store.replies.begin(user, chat, asked, NewTurn("m", "m", {"temperature": 1.0}, 4711, True, word))
    store.replies.append(reply, f"The {word} plays.", [7, 8], ["context", "target"])
    store.replies._writing.discard(reply)
    with store.connection.write() as db:
        db.execute("UPDATE messages SET state = 'complete' WHERE id = ?", [reply])
    edited = store.messages.edit_reply(user, reply, f"The {word} sleeps.")
    store.messages.put_call(user, reply, ToolCall("files", "read", "{}", "done", f"A {word} is here."))
    store.chats.rename(user, chat, f"Of a {word}")
    documents, passages = Documents(store.connection), [Passage(word, word, f"A {word} plays bars of wood.")]
    documents.add(user, Document(0, word, 20, 0, False, False), chat, iter(passages))
    document = documents.listed(user, chat)[0].id
    preset = store.presets.create(user, word, ChatSettings(f"You are a {word}", {}))
    store.chats.set_settings(user, chat, ChatSettings(f"You are a {word}", {}, preset))
    store.learned.keep(user, "m", "successors", word.encode())
    store.messages.enqueue(
        user, chat, NewMessage(edited, f"Who else is a {word}?", files=[file]), at_end=True
    )
    hidden = store.chats.create(user, f"Hidden {word}")
    store.messages.add(user, hidden, NewMessage(None, word))
    store.chats.hide(user, hidden)
    incognito = store.chats.begin_incognito(user)
    store.messages.add(user, incognito, NewMessage(None, word))
    with store.connection.read() as db:
        attachment = db.execute("SELECT max(id) FROM attachments WHERE message_id = ?", [asked]).fetchone()[0]
    ids = {
        "chat": chat, "asked": asked, "reply": reply, "edited": edited, "preset": preset, "hidden": hidden,
        "incognito": incognito, "attachment": attachment, "project": project,
        "document": document,
    }  # fmt: skip
    return Secrets(user, ids)


def rows_of(store: Store, user: int) -> dict[str, list[Any]]:
    """Everything that the store holds of a user, by table: what names them, or a chat, message or text of theirs."""
    mine = "SELECT id FROM conversations WHERE user_id = :user"
    whose = {
        "user_id": ":user",
        "conversation_id": mine,
        "message_id": f"SELECT id FROM messages WHERE conversation_id IN ({mine})",
        "document_id": "SELECT id FROM documents WHERE user_id = :user",
    }
    found = {}
    with store.connection.read() as db:
        for table in db.table_names():
            named = [name for name in whose if name in db[table].columns_dict]
            if named or table == "users":
                which = f"{named[0]} IN ({whose[named[0]]})" if named else "id = :user"
                found[table] = db.execute(f"SELECT * FROM {table} WHERE {which}", {"user": user}).fetchall()
    return found
