// The official TypeScript SDK's server: `node server.mjs http|stdio [KIND…]`, with the capabilities of these kinds.
//
// Its tools say what is to happen: `publish` (an event by its name, and its `uri`) and `end` (end every stream
// gracefully; over stdio the SDK then closes the channel too). Over HTTP the first line on stderr is the URL.

import { createServer } from 'node:http';
import { localhostHostValidation, toNodeHandler } from '@modelcontextprotocol/node';
import { createMcpHandler, McpServer } from '@modelcontextprotocol/server';
import { serveStdio } from '@modelcontextprotocol/server/stdio';
import * as z from 'zod';

const [transport, ...kinds] = process.argv.slice(2);
const supports = kind => kinds.length === 0 || kinds.includes(kind); // the SDK takes an absent bit for true
const capabilities = {
    tools: { listChanged: supports('toolsListChanged') },
    prompts: { listChanged: supports('promptsListChanged') },
    resources: { listChanged: supports('resourcesListChanged'), subscribe: supports('resourceSubscriptions') }
};

let publish;
let end;

function build() {
    const server = new McpServer({ name: 'typescript', version: '1.0.0' }, { capabilities });
    const done = { content: [{ type: 'text', text: 'done' }] };
    const inputSchema = z.object({ event: z.string(), uri: z.string().optional() });
    server.registerTool('publish', { inputSchema }, async ({ event, uri }) => {
        await publish(server, event, uri);
        return done;
    });
    server.registerTool('end', {}, async () => {
        setImmediate(end); // after the answer
        return done;
    });
    return server;
}

if (transport === 'http') {
    const handler = createMcpHandler(build, { onerror: console.error });
    const tell = {
        tools_list_changed: () => handler.notify.toolsChanged(),
        prompts_list_changed: () => handler.notify.promptsChanged(),
        resources_list_changed: () => handler.notify.resourcesChanged(),
        resource_updated: uri => handler.notify.resourceUpdated(uri)
    };
    publish = (_, event, uri) => tell[event](uri);
    end = () => handler.close();
    const serve = toNodeHandler(handler);
    const allowed = localhostHostValidation();
    const http = createServer((request, response) => allowed(request, response) && void serve(request, response));
    http.listen(0, '127.0.0.1', () => console.error(`http://127.0.0.1:${http.address().port}/mcp`));
} else {
    publish = (server, event, uri) =>
        ({
            tools_list_changed: () => server.sendToolListChanged(),
            prompts_list_changed: () => server.sendPromptListChanged(),
            resources_list_changed: () => server.sendResourceListChanged(),
            resource_updated: () => server.server.sendResourceUpdated({ uri })
        })[event]();
    const handle = serveStdio(build, { onerror: console.error });
    end = () => handle.close();
}
