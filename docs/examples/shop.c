/* An order service in one file: writes an order and its event in one transaction, then takes an event once.
 *
 *     cc shop.c $(pkg-config --cflags --libs outbox) -o shop
 *     ./shop postgresql://localhost/shop
 *
 * The tables of the outbox come from `outboxd migrate up`; the order table is made here. */
#include <stdio.h>
#include <stdlib.h>

#include <outbox.h>

static void run(PGconn *conn, const char *sql)
{
    PGresult *result = PQexec(conn, sql);
    ExecStatusType status = PQresultStatus(result);
    PQclear(result);
    if (status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK)
        return;
    fprintf(stderr, "%s: %s", sql, PQerrorMessage(conn));
    exit(1);
}

static void fail(PGconn *conn, const char *what)
{
    fprintf(stderr, "%s: %s", what, PQerrorMessage(conn));
    exit(1);
}

/* The row and the event are committed together, or neither is. */
static void place_order(PGconn *conn, char ret_id[27])
{
    struct outbox_event event = {
        .topic = "orders",
        .aggregate_type = "order",
        .aggregate_id = "4711",
        .payload = "{\"total\": 12.50}",
        .event_type = "order.placed",
        .headers = "{\"source\": \"shop\"}",
    };
    run(conn, "BEGIN");
    run(conn, "INSERT INTO shop_orders VALUES ('4711', 12.50) ON CONFLICT (id) DO UPDATE SET total = excluded.total");
    if (outbox_publish(conn, &event, ret_id) != 0)
        fail(conn, "outbox_publish");
    run(conn, "COMMIT");
}

/* Called for every delivery, the repeated ones, too: the effect is once. */
static int take_event(PGconn *conn, const char *event_id)
{
    run(conn, "BEGIN");
    int first = inbox_accept(conn, NULL, "shop-mailer", event_id);
    if (first < 0)
        fail(conn, "inbox_accept");
    if (first)
        run(conn, "UPDATE shop_orders SET mails = mails + 1 WHERE id = '4711'");
    run(conn, "COMMIT");
    return first;
}

int main(int argc, char **argv)
{
    PGconn *conn = PQconnectdb(argc > 1 ? argv[1] : "");
    if (PQstatus(conn) != CONNECTION_OK)
        fail(conn, "cannot connect");
    run(conn, "SET client_min_messages = warning");
    run(conn,
        "CREATE TABLE IF NOT EXISTS shop_orders (id text PRIMARY KEY, total numeric, mails int NOT NULL DEFAULT 0)");

    char id[27];
    place_order(conn, id);
    printf("published %s\n", id);
    printf("first delivery: %s\n", take_event(conn, id) ? "mail sent" : "seen before");
    printf("second delivery: %s\n", take_event(conn, id) ? "mail sent" : "seen before");
    PQfinish(conn);
    return 0;
}
