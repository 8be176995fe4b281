import type { Failure } from "../api/client";

/** Shows the server's error message, and the request id by which the server log identifies it. */
export function FailureView({ failure }: { failure: Failure }) {
  const details = [
    failure.status && `status ${failure.status}`,
    failure.code,
    failure.param && `field ${failure.param}`,
    failure.requestId,
  ].filter(Boolean);
  return (
    <div class="failure" role="alert">
      <p>{failure.message}</p>
      {failure.status === 401 && <p>Enter a valid API key at the top of the page.</p>}
      {details.length > 0 && <p class="small">{details.join(" · ")}</p>}
    </div>
  );
}
