// The work that the server does for the shown model: a lesson, or an export. One at a time.

import { get, modelPath, post, remove } from "./api.js";
import { releaseThumbnails } from "./images.js";
import { refresh, shown } from "./model.js";
import { Store } from "./store.js";

const ENDED = ["done", "failed", "canceled", "interrupted"];
const POLL = 1000; // milliseconds, where events do not come

export const work = new Store({ model: null, job: null, images: new Map(), error: null });

export const isRunning = (job) => Boolean(job) && !ENDED.includes(job.state);

// Whether this is a lesson that ended otherwise than it should.
export const needsAttention = (job) => job?.kind === "learn" && ["failed", "canceled", "interrupted"].includes(job.state);

let source = null;

function close() {
  source?.close();
  source = null;
}

// Look for work of this model that began before this page was opened.
export async function findWork(model) {
  if (work.state.model === model) return;
  close();
  dismiss();
  work.set({ model });
  const jobs = await get(modelPath(model, "/jobs"));
  const job = jobs.find((each) => isRunning(each) || each.state === "interrupted");
  if (!job || work.state.model !== model) return;
  work.set({ job });
  if (isRunning(job)) watch(model, job.id);
}

export async function start(model, request) {
  dismiss();
  work.set({ model });
  try {
    const job = await post(modelPath(model, "/jobs"), request);
    work.set({ job });
    return await watch(model, job.id);
  } catch (error) {
    work.set({ error: error.message });
    return null;
  }
}

// Stop a running job, or give up one that was interrupted.
export async function cancel() {
  const { model, job } = work.state;
  try {
    const left = await remove(modelPath(model, `/jobs/${job.id}`));
    if (!isRunning(job)) work.set({ job: left });
  } catch (error) {
    work.set({ error: error.message });
  }
}

export async function resume() {
  const { model, job } = work.state;
  try {
    work.set({ job: await post(modelPath(model, `/jobs/${job.id}/resume`)), error: null });
    await watch(model, job.id);
  } catch (error) {
    work.set({ error: error.message });
  }
}

// Show nothing of the last job any more.
export function dismiss() {
  releaseThumbnails(work.state.images.values());
  work.set({ job: null, error: null, images: new Map() });
}

// Follow a job to its end, by events or, where a proxy swallows them, by asking; return it.
function watch(model, id) {
  close();
  return new Promise((resolve) => {
    const path = modelPath(model, `/jobs/${id}`);
    const follow = (job) => {
      if (work.state.model === model) work.set({ job });
      return job;
    };
    const finish = async (job) => {
      close();
      if (shown.state.name === model) await refresh();
      resolve(follow(job));
    };
    const ask = async () => {
      try {
        const job = follow(await get(path));
        return isRunning(job) ? setTimeout(ask, POLL) : finish(job);
      } catch (error) {
        work.set({ error: error.message });
        return resolve(null);
      }
    };
    source = new EventSource(`${path}/events`);
    source.addEventListener("progress", (event) => follow(JSON.parse(event.data)));
    source.addEventListener("end", (event) => finish(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      close();
      ask();
    });
  });
}
