// The official TypeScript SDK's client. JSON lines on stdin tell it what to do; what happens is a JSON line on stdout.
//
//   node client.mjs URL                     over HTTP
//   node client.mjs COMMAND [ARGUMENT]…     over stdio
//
// → {"do":"listen","as":NAME,"filter":{…}}   {"do":"close","as":NAME}   {"do":"call","tool":T,"arguments":{…}}
// ← {"type":"connected","capabilities"}  {"type":"listening","as","honored"}  {"type":"closed","as","how"}
//   {"type":"notification","method","params"}  {"type":"answer","text"}  {"type":"error","message","code"}
// The end of stdin closes the client.

import { createInterface } from 'node:readline';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

const CHANGES = [
    'notifications/tools/list_changed',
    'notifications/prompts/list_changed',
    'notifications/resources/list_changed',
    'notifications/resources/updated'
];

const say = message => process.stdout.write(JSON.stringify(message) + '\n');
const complain = error => say({ type: 'error', message: String(error?.message ?? error), code: error?.code });

const [target, ...args] = process.argv.slice(2);
const transport = target.startsWith('http')
    ? new StreamableHTTPClientTransport(new URL(target))
    : new StdioClientTransport({ command: target, args, env: process.env, stderr: 'inherit' });
const client = new Client({ name: 'peer', version: '1.0.0' }, { versionNegotiation: { mode: 'auto' } });
client.onerror = complain;
for (const method of CHANGES) {
    client.setNotificationHandler(method, ({ params }) => say({ type: 'notification', method, params }));
}
client.fallbackNotificationHandler = async ({ method, params }) => say({ type: 'unexpected', method, params });

const subscriptions = new Map();
const verbs = {
    async listen({ as, filter }) {
        const subscription = await client.listen(filter);
        subscriptions.set(as, subscription);
        say({ type: 'listening', as, honored: subscription.honoredFilter });
        subscription.closed.then(how => say({ type: 'closed', as, how }));
    },
    close: ({ as }) => subscriptions.get(as).close(),
    async call({ tool, arguments: given }) {
        const result = await client.callTool({ name: tool, arguments: given });
        say({ type: 'answer', text: result.content[0].text });
    }
};

try {
    await client.connect(transport);
    say({ type: 'connected', capabilities: client.getServerCapabilities() });
    for await (const line of createInterface({ input: process.stdin })) {
        const order = JSON.parse(line);
        await verbs[order.do](order).catch(complain);
    }
    await client.close();
} catch (error) {
    complain(error);
    process.exitCode = 1;
}
