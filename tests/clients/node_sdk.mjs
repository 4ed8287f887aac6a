// Drives the unmodified OpenAI SDK for Node as one JSON document on stdin says; one JSON line on stdout for each operation.
//
//   {"baseURL", "apiKey", "maxRetries", "timeout" (ms, of the client), "operations": [{"name", "params", "options"}, ...]}
//
// create, stream, abandon (stream, aborted after the first text), chat, models, socket (a response over WebSocket).
import OpenAI from 'openai';
import { ResponsesWS } from 'openai/resources/responses/ws';

let given = '';
for await (const chunk of process.stdin) given += chunk;
const { operations, ...options } = JSON.parse(given);
const client = new OpenAI(options);

const done = {
  async create({ params, options }) {
    const found = await client.responses.create(params, options);
    return { text: found.output_text, status: found.status, usage: found.usage, output: found.output };
  },
  async stream({ params, options }) {
    const kinds = [];
    let text = '', usage = null;
    for await (const event of await client.responses.create({ ...params, stream: true }, options)) {
      kinds.push(event.type);
      if (event.type === 'response.output_text.delta') text += event.delta;
      if (event.type === 'response.completed') usage = event.response.usage;
    }
    return { kinds, text, usage };
  },
  async abandon({ params, options }) {
    const stream = await client.responses.create({ ...params, stream: true }, options);
    for await (const event of stream) if (event.type === 'response.output_text.delta') break;
    stream.controller.abort();
    // The process lives on past the grace: it is the SDK that closes.
    await new Promise((resolve) => setTimeout(resolve, 3000));
    return {};
  },
  async models() {
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    return { ids };
  },
  async socket({ params }) {
    const socket = new ResponsesWS(client);
    const kinds = [];
    let text = '';
    const usage = await new Promise((resolve, reject) => {
      socket.on('error', reject);
      socket.on('event', (event) => {
        kinds.push(event.type);
        if (event.type === 'response.output_text.delta') text += event.delta;
        if (event.type === 'response.completed') resolve(event.response.usage);
      });
      socket.socket.on('open', () => socket.send({ type: 'response.create', ...params }));
    });
    socket.close();
    return { kinds, text, usage };
  },
};

for (const operation of operations) {
  let result;
  try {
    result = await done[operation.name](operation);
  } catch (error) {
    const { status, code, type, message } = error;
    result = { error: { name: error.constructor.name, status, code, type, message } };
  }
  console.log(JSON.stringify(result));
}
process.exit(0);
