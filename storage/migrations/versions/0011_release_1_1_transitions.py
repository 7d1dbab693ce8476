"""Replace the foreign key of transitions on PostgreSQL by a check per statement, which is faster."""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

CHECK = """
    CREATE FUNCTION check_runs_of_transitions() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        missing text;
    BEGIN
        PERFORM 1 FROM runs WHERE id IN (SELECT DISTINCT run_id FROM inserted) FOR KEY SHARE;
        SELECT run_id INTO missing FROM (SELECT DISTINCT run_id FROM inserted) AS named
        WHERE NOT EXISTS (SELECT 1 FROM runs WHERE id = named.run_id) LIMIT 1;
        IF FOUND THEN
            RAISE foreign_key_violation USING MESSAGE = format('transitions of a run that is not there: %s', missing);
        END IF;
        RETURN NULL;
    END $$
"""
REMOVE = """
    CREATE FUNCTION delete_transitions_of_run() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        DELETE FROM transitions WHERE run_id = OLD.id;
        RETURN NULL;
    END $$
"""


def upgrade() -> None:
    """Check once per statement that the runs of inserted transitions exist, and delete the transitions of a run.

    A foreign key is checked for every row, which takes most of the time of an insertion. As with a foreign key, the
    runs cannot be deleted until the insertion is committed.
    """
    if op.get_bind().dialect.name != "postgresql":
        return
    op.drop_constraint("transitions_run_id_fkey", "transitions", type_="foreignkey")
    op.execute(CHECK)
    op.execute(
        "CREATE TRIGGER check_runs AFTER INSERT ON transitions REFERENCING NEW TABLE AS inserted "
        "FOR EACH STATEMENT EXECUTE FUNCTION check_runs_of_transitions()"
    )
    op.execute(REMOVE)
    op.execute(
        "CREATE TRIGGER delete_transitions AFTER DELETE ON runs "
        "FOR EACH ROW EXECUTE FUNCTION delete_transitions_of_run()"
    )
