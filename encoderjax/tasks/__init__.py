"""Tasks that a pretrained encoder is fine-tuned for."""

from encoderjax.tasks.answer import Answer
from encoderjax.tasks.choose import Choose
from encoderjax.tasks.classify import Classify
from encoderjax.tasks.embed import Embed
from encoderjax.tasks.tag import Tag
from encoderjax.tasks.task import Task

TASKS: dict[str, type[Task]] = {
    task.kind: task for task in (Classify, Tag, Answer, Choose, Embed)
}
