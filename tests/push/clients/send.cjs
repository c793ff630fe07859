// Sends with the libraries of those who send: node send.cjs KIND URL [SECRET]. Prints the answers' statuses.
// NODE_PATH says where the libraries are.

async function post(url, headers, body) {
  const answer = await fetch(url, { method: "POST", headers, body });
  return answer.status;
}

async function* cloudevents(url) {
  const { CloudEvent, HTTP, emitterFor, httpTransport } = require("cloudevents");
  const event = (number) =>
    new CloudEvent({
      id: `js-${number}`,
      type: "order.created",
      source: "/javascript",
      subject: "orders/1",
      partitionkey: "customer-7",
      data: { order: number, "naïve": true },
    });
  for (const [number, write] of [HTTP.binary, HTTP.structured].entries()) {
    const message = write(event(number));
    yield await post(url, message.headers, message.body);
  }
  // Its own way of sending.
  const emit = emitterFor(httpTransport(url));
  await emit(event(2));
  yield "emitted";
}

async function* standardWebhooks(url, secret) {
  const { Webhook } = require("standardwebhooks");
  const body = JSON.stringify({ type: "order.created", data: { name: "Zoë" } });
  for (const [at, signed] of [[new Date(), body], [new Date(Date.now() - 3600_000), body]]) {
    const headers = {
      "content-type": "application/json",
      "webhook-id": "msg_js",
      "webhook-timestamp": String(Math.floor(at.getTime() / 1000)),
      "webhook-signature": new Webhook(secret).sign("msg_js", at, signed),
    };
    yield await post(url, headers, body);
  }
}

async function* github(url, secret) {
  const { sign } = await import(
    require("node:url").pathToFileURL(
      require("node:path").join(process.env.NODE_PATH, "@octokit/webhooks-methods/dist-node/index.js"),
    )
  );
  const body = JSON.stringify({ action: "opened", number: 1, title: "Zoë" });
  for (const key of [secret, "another"]) {
    const headers = {
      "content-type": "application/json",
      "x-github-event": "pull_request",
      "x-github-delivery": "00000000-0000-4000-8000-0000000000ff",
      "x-hub-signature-256": await sign(key, body),
    };
    yield await post(url, headers, body);
  }
}

const kinds = { cloudevents, "standard-webhooks": standardWebhooks, github };

(async () => {
  const [kind, url, secret] = process.argv.slice(2);
  for await (const answer of kinds[kind](url, secret)) console.log(answer);
})();
